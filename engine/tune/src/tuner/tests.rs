//! Tests of the driver on a simulated machine with preset speeds and its own clock.

use std::time::Duration;

use build_info::tuning::{Chosen, CpuKey, Entry, ModelShape, Sample, TuningKey};
use build_info::{Bytes, Defaults};
use measure::Rule;

use super::check::OutputComparison;
use super::halving::*;
use super::search::*;
use super::space::{Change, *};
use super::task::DEEPEST;
use super::*;

/// Machine whose speeds are known.
struct Planted {
    clock: Duration,
    runs: usize,
    /// Speed-ups of prefill and decode under the settings.
    speed: fn(&Chosen) -> (f64, f64),
    /// Failure of a run, if any, by the settings and the number of runs so far.
    failure: fn(&Chosen, usize) -> Option<Failure>,
    /// Number of cores that other processes keep busy, by the number of runs so far.
    elsewhere: fn(usize) -> f64,
    /// Divergence of the output.
    kld: fn(&Chosen) -> f64,
    /// Time of an output check.
    look: Duration,
    /// Peak memory of a run.
    peak: fn(&Chosen) -> Bytes,
    /// Maximum number of tokens before a run.
    deepest: u32,
    /// Number of runs after which the quota changes and the user interrupts.
    changed: usize,
    interrupted: usize,
    noise: u64,
    /// Maximum deviation of a run's speed from the true speed.
    spread: f64,
    told: Vec<String>,
}

impl Default for Planted {
    fn default() -> Self {
        Self {
            clock: Duration::ZERO,
            runs: 0,
            speed: |_| (1.0, 1.0),
            failure: |_, _| None,
            elsewhere: |_| 0.0,
            kld: |_| 0.0,
            look: Duration::ZERO,
            peak: |settings| Bytes::mib(if settings.huge_pages.is_some() { 5000 } else { 1000 }),
            deepest: u32::MAX,
            changed: usize::MAX,
            interrupted: usize::MAX,
            noise: 1,
            spread: 0.02,
            told: Vec::new(),
        }
    }
}

impl Planted {
    /// Returns 1, plus or minus up to the spread.
    fn jitter(&mut self) -> f64 {
        self.noise =
            self.noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        1.0 + ((self.noise >> 40) as f64 / f64::from(1 << 24) - 0.5) * 2.0 * self.spread
    }
}

impl Runner for Planted {
    fn measure(&mut self, settings: &Chosen, work: Work) -> Result<RunFigures, Failure> {
        self.runs += 1;
        if let Some(failure) = (self.failure)(settings, self.runs) {
            return Err(failure);
        }
        if work.depth() > self.deepest {
            return Err(Failure::Failed("this memory cannot move tokens".to_string()));
        }
        let (prefill, decode) = (self.speed)(settings);
        // 100 and 25 tokens per second; the machine becomes slower over time.
        let drift = 1.0 + self.clock.as_secs_f64() / 300.0;
        let prefill = f64::from(work.prompt) / 100.0 / prefill * drift * self.jitter();
        let decode = f64::from(work.generate) / 25.0 / decode * drift * self.jitter();
        self.clock += Duration::from_secs_f64(prefill + decode + 0.01);
        let sample = Sample {
            prompt: work.prompt,
            prompt_after: work.prompt_after,
            prefill_ns: (prefill * 1e9) as u64,
            generated: work.generate,
            generated_after: work.generate_after,
            decode_ns: (decode * 1e9) as u64,
        };
        Ok(RunFigures { sample, peak: Some((self.peak)(settings)) })
    }

    fn check(&mut self, settings: &Chosen) -> Result<OutputComparison, Failure> {
        self.clock += self.look;
        let mean_kld = (self.kld)(settings);
        let equal = if mean_kld > 0.0 { 3 } else { 16 };
        Ok(OutputComparison { positions: 80, mean_kld, top1: 1.0, greedy: 16, equal, rounding: None })
    }

    fn elapsed(&self) -> Duration {
        self.clock
    }

    fn is_interrupted(&self) -> bool {
        self.runs >= self.interrupted
    }

    fn cores_busy_elsewhere(&mut self) -> Option<f64> {
        Some((self.elsewhere)(self.runs))
    }

    fn given(&mut self) -> Option<CpuKey> {
        Some(cpu(if self.runs >= self.changed { Some(1.0) } else { None }))
    }

    fn keep_only(&mut self, _settings: &Chosen) {}

    fn tell(&mut self, event: TuningEvent<'_>) {
        self.told.push(format!("{event:?}"));
    }
}

fn cpu(quota: Option<f64>) -> CpuKey {
    CpuKey {
        vendor: "v".to_string(),
        name: "n".to_string(),
        family: None,
        model: None,
        features: "f".to_string(),
        affinity: vec![0, 1],
        quota,
    }
}

fn task(objective: &str, stages: Vec<TuningStage>) -> Task {
    let model = ModelShape {
        architecture: "llama".to_string(),
        layers: 2,
        embedding: 64,
        feed_forward: 128,
        heads: 4,
        kv_heads: 2,
        vocabulary: 256,
        quantisation: "F16".to_string(),
        weights: Bytes::mib(900),
    };
    Task {
        key: TuningKey {
            build: "b".to_string(),
            defaults: Defaults::default(),
            cpu: cpu(None),
            model,
            objective: objective.to_string(),
        },
        objective: objective.parse().expect("known"),
        budget: Duration::from_secs(180),
        ceiling: None,
        lossy: false,
        stages,
        cores: 2,
    }
}

fn stage(name: &'static str, phases: Phases, changes: &[Chosen]) -> TuningStage {
    let change =
        |(number, set): (usize, &Chosen)| Change { name: format!("{name} {number}"), set: set.clone() };
    TuningStage { name, phases, changes: changes.iter().enumerate().map(change).collect(), least_prompt: 0 }
}

fn layout() -> TuningStage {
    let unpacked = Chosen { repack: Some(false), ..Chosen::default() };
    let untiled = Chosen { tiled: Some(false), ..Chosen::default() };
    stage("layout", Phases::Both, &[unpacked.clone(), untiled.clone(), with(&unpacked, &untiled)])
}

fn waiting() -> TuningStage {
    stage("waiting", Phases::Both, &[Chosen { poll: Some(0), ..Chosen::default() }])
}

fn threads() -> TuningStage {
    stage("threads", Phases::Decode, &[Chosen { decode_threads: Some(1), ..Chosen::default() }])
}

/// Speed-ups of weights that are not repacked: prefill is faster, decode is slower.
fn unpacked(settings: &Chosen) -> (f64, f64) {
    let untiled = if settings.tiled == Some(false) { 0.6 } else { 1.0 };
    if settings.repack == Some(false) { (1.6 * untiled, 0.83) } else { (1.0, 1.0) }
}

fn run(task: &Task, runner: &mut Planted) -> Result<Entry, Stop> {
    tune(task, runner, &mut TuningProgress::new(task), &mut |_| Ok(()))
}

#[test]
fn the_purpose_decides_which_layout_is_found() {
    let cases =
        [("rag", Some(false)), ("8:1", Some(false)), ("chat", None), ("0:1", None), ("1:0", Some(false))];
    for (objective, repack) in cases {
        let mut runner = Planted { speed: unpacked, ..Planted::default() };
        let entry =
            run(&task(objective, vec![layout(), waiting(), threads()]), &mut runner).expect("an entry");
        assert_eq!(entry.chosen, Chosen { repack, ..Chosen::default() }, "{objective}: {:?}", runner.told);
        assert!(entry.seconds <= 180.0, "{objective}: {}", entry.seconds);
        if repack.is_some() {
            let found = entry.confirmation.expect("a confirmation");
            assert!(found.total.low > 1.0 && found.total.pairs >= 6, "{found:?}");
            assert!((found.prefill.median - 1.6).abs() < 0.1, "{found:?}");
        }
    }
}

#[test]
fn runs_stand_in_the_middle_of_what_is_asked_for() {
    let of = |prompt, generate, objective: &str| {
        let work = Work::amid(prompt, generate, &objective.parse().expect("known"));
        (work.prompt_after, work.generate_after)
    };
    assert_eq!(of(64, 16, "rag"), ((2048 - 64) / 2, 2048 + (256 - 16) / 2));
    assert_eq!(of(128, 16, "chat"), (0, 128 + (512 - 16) / 2));
    // The whole prompt, and a phase that is not run.
    assert_eq!(of(2048, 0, "rag"), (0, 0));
    assert_eq!(of(0, 8, "0:8"), (0, 0));
    assert_eq!(of(64, 8, "8:1"), ((512 - 64) / 2, 512 + (64 - 8) / 2));
    assert_eq!(of(512, 128, "1000000:1000000"), (DEEPEST, DEEPEST));
}

#[test]
fn a_gain_that_noise_hides_from_the_first_look_gets_a_second_one() {
    let run_all = |speed: fn(&Chosen) -> (f64, f64)| {
        let entries = (1..=40).map(|seed| {
            let mut runner = Planted { speed, noise: seed * 7919, spread: 0.15, ..Planted::default() };
            run(&task("batch", vec![waiting()]), &mut runner).expect("an entry")
        });
        entries.collect::<Vec<Entry>>()
    };
    let ratio = |entry: &Entry| entry.stages[0].candidates[1].ratio.expect("it was run");
    let faster = run_all(|settings| if settings.poll.is_some() { (1.12, 1.12) } else { (1.0, 1.0) });
    let found = |entries: &[Entry]| entries.iter().filter(|entry| entry.stages[0].winner == 1).count();
    let late = faster.iter().filter(|entry| entry.stages[0].winner == 1 && ratio(entry).pairs == 16);
    assert!(late.count() >= 3 && found(&faster) >= 30, "{} of 40", found(&faster));
    for entry in &faster {
        let (ratio, pairs) = (ratio(entry), entry.stages[0].candidates[1].samples.len());
        assert!(pairs == 16 || ratio.low > 1.0 || ratio.median < 1.03, "{ratio:?}");
    }
    let equal = run_all(|_| (1.0, 1.0));
    let chosen = equal.iter().filter(|entry| !entry.chosen.is_default()).count();
    assert!(chosen <= 2, "{chosen} of 40 equal ones were taken for faster");
}

#[test]
fn what_an_earlier_stage_decided_is_no_stage_of_its_own() {
    let off = Chosen { flash_attention: Some("off".to_string()), ..Chosen::default() };
    let both = with(&off, &Chosen { repack: Some(false), ..Chosen::default() });
    let stages = vec![
        stage("layout", Phases::Both, std::slice::from_ref(&both)),
        stage("attention", Phases::Both, &[off]),
    ];
    for (gain, chosen, names) in
        [(1.3, both, &["layout"][..]), (1.0, Chosen::default(), &["layout", "attention"])]
    {
        let speed: fn(&Chosen) -> (f64, f64) = if gain > 1.0 {
            |settings| if settings.repack == Some(false) { (1.3, 1.3) } else { (1.0, 1.0) }
        } else {
            |_| (1.0, 1.0)
        };
        let mut runner = Planted { speed, ..Planted::default() };
        let entry = run(&task("rag", stages.clone()), &mut runner).expect("an entry");
        assert_eq!(entry.chosen, chosen);
        let found: Vec<&str> = entry.stages.iter().map(|stage| stage.name.as_str()).collect();
        assert_eq!(found, names);
    }
}

#[test]
fn where_a_context_cannot_be_filled_runs_begin_in_an_empty_one_and_that_is_told() {
    for (deepest, depth) in [(u32::MAX, 2048 + (256 - 22) / 2), (0, 0)] {
        let mut runner = Planted { speed: unpacked, deepest, ..Planted::default() };
        let entry = run(&task("rag", vec![layout()]), &mut runner).expect("an entry");
        assert_eq!(entry.chosen.repack, Some(false), "{:?}", runner.told);
        let samples = &entry.stages[0].candidates[0].samples;
        assert!(samples.iter().all(|sample| sample.generated_after == depth), "{samples:?}");
        let told = runner.told.iter().any(|line| line.contains("runs begin in an empty context"));
        assert_eq!(told, depth == 0, "{:?}", runner.told);
    }
}

#[test]
fn equal_candidates_leave_the_defaults_whatever_the_noise() {
    let mut changed = 0;
    for seed in 1..=60 {
        let mut runner = Planted { noise: seed * 7919, ..Planted::default() };
        let entry = run(&task("batch", vec![waiting()]), &mut runner).expect("an entry");
        changed += u32::from(!entry.chosen.is_default());
    }
    assert!(changed <= 3, "{changed} of 60");
}

#[test]
fn gains_add_up_from_stage_to_stage() {
    let speed: fn(&Chosen) -> (f64, f64) = |settings| {
        let (prefill, decode) = unpacked(settings);
        let poll = if settings.poll == Some(0) { 1.1 } else { 1.0 };
        (prefill * poll, decode * poll * if settings.decode_threads == Some(1) { 1.2 } else { 1.0 })
    };
    let mut runner = Planted { speed, ..Planted::default() };
    let mut saved = Vec::new();
    let task = task("rag", vec![layout(), threads(), waiting()]);
    let mut save = |progress: &TuningProgress| -> Result<(), String> {
        saved.push(progress.clone());
        Ok(())
    };
    let entry = tune(&task, &mut runner, &mut TuningProgress::new(&task), &mut save).expect("an entry");
    let all = Chosen { repack: Some(false), decode_threads: Some(1), poll: Some(0), ..Chosen::default() };
    assert_eq!(entry.chosen, all);
    assert_eq!(saved.iter().map(|progress| progress.done.len()).collect::<Vec<_>>(), [1, 2, 3]);
    // A phase that decode threads do not affect was not run.
    let samples = &entry.stages[1].candidates[1].samples;
    assert!(!samples.is_empty() && samples.iter().all(|sample| sample.prompt == 0), "{samples:?}");

    // A tuning run that was stopped after the first stage runs the other stages.
    let mut progress = saved[0].clone();
    assert!(progress.is_of(&task) && progress.is_sound());
    let mut runner = Planted { speed, ..Planted::default() };
    let again = tune(&task, &mut runner, &mut progress, &mut |_| Ok(())).expect("an entry");
    assert_eq!(again.chosen, all);
    assert_eq!(again.stages[0], entry.stages[0]);
    assert!(again.seconds > progress.done.len() as f64);
}

#[test]
fn a_candidate_that_fails_is_dropped_and_the_rest_goes_on() {
    let failures: [fn(&Chosen, usize) -> Option<Failure>; 2] = [
        |settings, _| (settings.tiled == Some(false)).then(|| Failure::Failed("it was killed".to_string())),
        // Interrupted in the middle of a round.
        |settings, runs| {
            (settings.tiled == Some(false) && runs > 7).then(|| Failure::Failed("it was killed".to_string()))
        },
    ];
    for failure in failures {
        let speed =
            |settings: &Chosen| if settings.tiled.is_some() { (2.0, 2.0) } else { unpacked(settings) };
        let mut runner = Planted { speed, failure, ..Planted::default() };
        let entry = run(&task("rag", vec![layout()]), &mut runner).expect("an entry");
        assert_eq!(entry.chosen.named(), [("repack", "off".to_string())]);
        let dropped = entry.stages[0].candidates[2].dropped.as_deref();
        assert_eq!(dropped, Some("it was killed"));
    }
}

#[test]
fn the_one_to_beat_gets_a_second_chance_and_no_third() {
    let once: fn(&Chosen, usize) -> Option<Failure> =
        |_, runs| (runs == 6).then(|| Failure::Failed("it crashed".to_string()));
    let mut runner = Planted { failure: once, ..Planted::default() };
    let entry = run(&task("rag", vec![waiting()]), &mut runner).expect("an entry");
    assert!(entry.chosen.is_default());
    let always: fn(&Chosen, usize) -> Option<Failure> = |settings, runs| {
        (settings.is_default() && runs > 5).then(|| Failure::Failed("it crashed".to_string()))
    };
    let mut runner = Planted { failure: always, ..Planted::default() };
    let stop = run(&task("rag", vec![waiting()]), &mut runner).expect_err("nothing runs");
    assert_eq!(stop, Stop::Failed("it crashed".to_string()));
    // The baseline also fails before the first stage.
    let first: fn(&Chosen, usize) -> Option<Failure> =
        |_, runs| (runs == 2).then(|| Failure::Failed("it crashed".to_string()));
    let mut runner = Planted { failure: first, ..Planted::default() };
    assert!(run(&task("rag", vec![waiting()]), &mut runner).is_ok());
    let mut runner =
        Planted { failure: |_, _| Some(Failure::Failed("no".to_string())), ..Planted::default() };
    assert_eq!(run(&task("rag", vec![waiting()]), &mut runner), Err(Stop::Failed("no".to_string())));
}

#[test]
fn what_gives_another_output_is_never_chosen() {
    let speed: fn(&Chosen) -> (f64, f64) =
        |settings| if settings.is_default() { (1.0, 1.0) } else { (2.0, 2.0) };
    for (kld, stage) in [(1e-3, layout()), (1e-9, waiting())] {
        let planted: fn(&Chosen) -> f64 = if kld > 1e-6 { |_| 1e-3 } else { |_| 1e-9 };
        let mut runner = Planted { speed, kld: planted, ..Planted::default() };
        let entry = run(&task("rag", vec![stage]), &mut runner).expect("an entry");
        assert!(entry.chosen.is_default(), "{:?}", entry.chosen);
        let dropped = entry.stages[0].candidates.iter().filter_map(|candidate| candidate.dropped.as_deref());
        assert!(
            dropped.clone().any(|why| why.contains("its output differs")),
            "{:?}",
            dropped.collect::<Vec<_>>()
        );
    }
}

#[test]
fn memory_above_the_ceiling_is_seen_before_and_after() {
    let pages = stage("pages", Phases::Both, &[Chosen { huge_pages: Some(false), ..Chosen::default() }]);
    let cache = Chosen { type_k: Some("f32".to_string()), n_ubatch: Some(1 << 20), ..Chosen::default() };
    let mut task = task("rag", vec![pages, stage("cache", Phases::Both, &[cache])]);
    task.ceiling = Some(Bytes::mib(1001));
    let mut runner = Planted { speed: |_| (1.0, 1.0), ..Planted::default() };
    let entry = run(&task, &mut runner).expect("an entry");
    let why = |stage: usize| entry.stages[stage].candidates[1].dropped.clone().unwrap_or_default();
    assert!(why(0).contains("it used 4.9 GiB"), "{}", why(0));
    assert_eq!(entry.chosen, Chosen::default());
    task.ceiling = Some(Bytes::mib(500));
    let stop = run(&task, &mut runner).expect_err("the model alone is larger");
    assert!(matches!(&stop, Stop::Failed(why) if why.contains("about 900 MiB")), "{stop:?}");
    // The excess is detected only when the candidate runs.
    task.ceiling = Some(Bytes::mib(990));
    let stop = run(&task, &mut runner).expect_err("what it took is more");
    assert!(matches!(&stop, Stop::Failed(why) if why.contains("needs 1000 MiB")), "{stop:?}");
}

#[test]
fn the_one_to_beat_is_never_dropped_for_its_memory() {
    // The stage's long prompts do not fit, but shorter ones do.
    let mut sizes = stage("size", Phases::Both, &[Chosen { n_ubatch: Some(32), ..Chosen::default() }]);
    sizes.least_prompt = 512;
    let mut task = task("rag", vec![sizes]);
    let least =
        |tokens| memory(&task.key.model, &Chosen { n_ubatch: Some(tokens), ..Chosen::default() }, 512);
    assert!(least(32) < least(512));
    task.ceiling = Some(Bytes(least(512).0 - 1));
    let mut runner = Planted { peak: |_| Bytes::mib(900), ..Planted::default() };
    let entry = run(&task, &mut runner).expect("an entry");
    let [base, other] = &entry.stages[0].candidates[..] else { panic!("{entry:?}") };
    assert_eq!((base.name.as_str(), base.dropped.as_deref()), ("as before", None));
    assert!(!base.samples.is_empty() && !other.samples.is_empty(), "{entry:?}");
    assert!(entry.chosen.is_default(), "{entry:?}");

    // The same case, with a run that used more memory than estimated.
    let peak: fn(&Chosen) -> Bytes =
        |settings| Bytes::mib(if settings.repack == Some(false) { 2000 } else { 900 });
    let both = vec![
        candidate("as before", Chosen { repack: Some(false), ..Chosen::default() }),
        candidate("x", Chosen { poll: Some(0), ..Chosen::default() }),
    ];
    let mut runner = Planted { peak, ..Planted::default() };
    let objective = Objective::default();
    let terms = Terms { ceiling: Some(Bytes::mib(1000)), ..terms(&objective, 600) };
    let outcome = contest(&mut runner, both, terms).expect("an outcome");
    assert_eq!(outcome.candidates[0].dropped, None);
}

#[test]
fn a_changed_quota_and_ctrl_c_end_it_with_what_was_decided() {
    let all = || vec![layout(), waiting(), threads()];
    let task = task("rag", all());
    let mut progress = TuningProgress::new(&task);
    let mut runner = Planted { speed: unpacked, changed: 12, ..Planted::default() };
    let stop = tune(&task, &mut runner, &mut progress, &mut |_| Ok(())).expect_err("a quota");
    assert!(matches!(&stop, Stop::Changed(why) if why.contains("a quota of 1 cores")), "{stop:?}");
    assert!(progress.done.is_empty(), "the stage in whose middle it happened decides nothing");

    let mut progress = TuningProgress::new(&task);
    let mut runner = Planted { speed: unpacked, changed: runner.runs + 1, ..Planted::default() };
    tune(&task, &mut runner, &mut progress, &mut |_| Ok(())).expect_err("a quota");
    assert_eq!((progress.done.len(), progress.chosen.repack), (1, Some(false)));

    // The same change during the confirmation, after all stages.
    let mut runner = Planted { speed: unpacked, ..Planted::default() };
    run(&task, &mut runner).expect("an entry");
    let mut runner = Planted { speed: unpacked, changed: runner.runs - 1, ..Planted::default() };
    let stop = run(&task, &mut runner).expect_err("a quota");
    assert!(matches!(&stop, Stop::Changed(_)), "{stop:?}");

    let mut progress = TuningProgress::new(&task);
    let mut runner = Planted { speed: unpacked, interrupted: 40, ..Planted::default() };
    let stop = tune(&task, &mut runner, &mut progress, &mut |_| Ok(())).expect_err("ctrl-C");
    assert_eq!(stop, Stop::Interrupted);
    assert!(!progress.done.is_empty() && runner.runs == 40, "{} {}", progress.done.len(), runner.runs);
}

#[test]
fn a_disturbed_round_is_repeated_and_told_and_not_for_ever() {
    let mut runner = Planted { elsewhere: |_| 1.5, speed: unpacked, ..Planted::default() };
    let entry = run(&task("rag", vec![layout()]), &mut runner).expect("an entry");
    assert_eq!(entry.chosen.repack, Some(false));
    let warnings =
        runner.told.iter().filter(|event| event.contains("other processes kept 1.5 cores busy")).count();
    // Three warnings in the stage, and three in the confirmation.
    assert_eq!(warnings, 6, "{:?}", runner.told);
}

#[test]
fn what_does_not_fit_into_the_budget_is_left_out_and_said() {
    let slow: fn(&Chosen) -> (f64, f64) = |_| (0.02, 0.02);
    let mut runner = Planted { speed: slow, ..Planted::default() };
    let entry = run(&task("rag", vec![layout(), waiting()]), &mut runner).expect("an entry");
    assert!(entry.chosen.is_default());
    for stage in &entry.stages {
        assert!(stage.cut_short.is_some() && !stage.is_decided(), "{stage:?}");
    }
    assert_eq!(runner.runs, 3, "only the probe");
    assert!(entry.notes[0].ends_with("undecided because time ran out: layout, waiting"), "{:?}", entry.notes);
}

#[test]
fn what_cannot_be_confirmed_is_not_kept() {
    // Fast at first, but as slow as the others at the end.
    let failure: fn(&Chosen, usize) -> Option<Failure> = |settings, runs| {
        (settings.poll.is_some() && runs > 20).then(|| Failure::Failed("it crashed".to_string()))
    };
    let speed: fn(&Chosen) -> (f64, f64) =
        |settings| if settings.poll.is_some() { (1.5, 1.5) } else { (1.0, 1.0) };
    let mut runner = Planted { speed, failure, ..Planted::default() };
    let entry = run(&task("rag", vec![waiting()]), &mut runner).expect("an entry");
    assert_eq!(entry.stages[0].winner, 1, "{:?}", entry.stages);
    assert!(entry.chosen.is_default());
    assert!(entry.notes.iter().any(|note| note.contains("so the defaults stay")), "{:?}", entry.notes);
    // Settings that are not in use are not shown as chosen.
    let text = report::entry(&entry, &[]);
    assert!(!text.contains("chosen  times as fast"), "{text}");
    let kept = Entry { chosen: entry.stages[0].candidates[1].settings.clone(), ..entry };
    let text = report::entry(&kept, &[]);
    assert!(text.contains("chosen  times as fast") && text.contains("poll"), "{text}");
}

#[test]
fn a_stage_without_a_verdict_says_so_and_is_tried_again() {
    let mut hurried = task("rag", vec![layout(), waiting()]);
    let mut progress = TuningProgress::new(&hurried);
    hurried.budget = Duration::from_secs(12);
    let mut runner = Planted { speed: unpacked, clock: Duration::from_secs(9), ..Planted::default() };
    let entry = tune(&hurried, &mut runner, &mut progress, &mut |_| Ok(())).expect("an entry");
    assert_eq!(entry.undecided(), ["layout", "waiting"], "{entry:?}");
    for stage in &entry.stages {
        let line = report::stage(stage);
        assert!(!line.contains("shown to be faster"), "{line}");
    }
    let undecided = build_info::tuning::Stage {
        cut_short: Some("undecided after 3 rounds: out of time".to_string()),
        ..decided(&entry.stages[0])
    };
    let line = report::stage(&undecided);
    assert_eq!(
        line,
        "layout: unchanged (undecided after 3 rounds: out of time); the best alternative, x: 0.990 [0.980, 1.010] \
         times as fast in 8 pairs (1 runs)"
    );
    let line = report::stage(&decided(&entry.stages[0]));
    assert!(line.contains("no candidate is shown to be faster; the best alternative, x: 0.990"), "{line}");

    // With enough time, all stages run.
    let task = task("rag", vec![layout(), waiting()]);
    let mut runner = Planted { speed: unpacked, ..Planted::default() };
    let entry = tune(&task, &mut runner, &mut progress, &mut |_| Ok(())).expect("an entry");
    assert_eq!(entry.chosen.repack, Some(false));
    assert_eq!(entry.stages.len(), 2, "{:?}", entry.stages);
    assert!(entry.undecided().is_empty());
}

#[test]
fn with_many_stages_each_gets_its_turn_within_the_budget() {
    let stages: Vec<TuningStage> = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"]
        .into_iter()
        .enumerate()
        .map(|(number, name)| {
            let poll = |poll| Chosen { poll: Some(poll), ..Chosen::default() };
            stage(name, Phases::Both, &[poll(2 * number as u32 + 1), poll(2 * number as u32 + 2)])
        })
        .collect();
    let mut runner = Planted { speed: |_| (10.0, 10.0), ..Planted::default() };
    let entry = run(&task("rag", stages), &mut runner).expect("an entry");
    assert_eq!(entry.stages.len(), 10);
    assert!(entry.undecided().is_empty(), "{:?}", entry.undecided());
    assert!(entry.seconds <= 180.0, "{}", entry.seconds);
}

#[test]
fn remaining_time_is_used_for_an_undecided_stage_which_then_comes_last() {
    let speed: fn(&Chosen) -> (f64, f64) = |settings| {
        let layout = if settings.repack == Some(false) { 1.6 } else { 1.0 };
        let waiting = if settings.poll.is_some() { 1.3 } else { 1.0 };
        (layout * waiting, layout * waiting)
    };
    let task = task("rag", vec![layout(), waiting()]);
    let mut progress = TuningProgress::new(&task);
    progress.done.push(build_info::tuning::Stage {
        name: "layout".to_string(),
        candidates: vec![candidate("as before", Chosen::default())],
        winner: 0,
        cut_short: Some("undecided after 3 rounds: out of time".to_string()),
    });
    let mut runner = Planted { speed, ..Planted::default() };
    let pace = Pace::probe(&task, &mut runner, 100).expect("a pace");
    let mut tuning = TuningRun { task: &task, pace, repeats: REPEATS, before: 0.0 };
    for again in [false, true] {
        tuning.stages(&mut runner, &mut progress, &mut |_| Ok(()), again).expect("decisions");
    }
    let names: Vec<&str> = progress.done.iter().map(|stage| stage.name.as_str()).collect();
    assert_eq!(names, ["waiting", "layout"]);
    assert_eq!((progress.chosen.repack, progress.chosen.poll), (Some(false), Some(0)));
    let entry = Entry {
        chosen: progress.chosen.clone(),
        stages: progress.done,
        ..run(&task, &mut Planted::default()).expect("an entry")
    };
    let text = report::entry(&entry, &[]);
    let rows = |name: &str| text.lines().filter(|line| line.starts_with(name)).count();
    assert_eq!((rows("poll "), rows("repack ")), (1, 1), "{text}");
    // The summary leaves out the lines that were printed when the stages were decided.
    let summary = report::summary(&entry, &[]);
    assert!(text.starts_with(&summary) && text.contains("\nlayout: ") && !summary.contains("\nlayout: "));
}

/// Returns `stage` as if it had run without finding anything faster.
fn decided(stage: &build_info::tuning::Stage) -> build_info::tuning::Stage {
    let mut stage = stage.clone();
    let mut other = candidate("x", Chosen::default());
    other.samples.push(Sample::default());
    other.ratio = Some(build_info::tuning::Interval { median: 0.99, low: 0.98, high: 1.01, pairs: 8 });
    stage.candidates = vec![candidate("as before", Chosen::default()), other];
    stage.cut_short = None;
    stage
}

#[test]
fn a_contest_that_runs_out_of_time_is_undecided() {
    let mut runner = Planted::default();
    let both = vec![
        candidate("as before", Chosen::default()),
        candidate("x", Chosen { poll: Some(0), ..Chosen::default() }),
    ];
    let outcome = contest(&mut runner, both, terms(&Objective::default(), 7)).expect("an outcome");
    assert_eq!(outcome.winner, 0);
    assert_eq!(outcome.cut_short.as_deref(), Some("undecided after 3 rounds: out of time"));
}

/// Returns terms with runs of one second and a deadline after `seconds`.
fn terms(objective: &Objective, seconds: u64) -> Terms<'_> {
    Terms {
        objective,
        work: Work { prompt: 100, generate: 0, ..Work::default() },
        deadline: Duration::from_secs(seconds),
        run: Duration::from_secs(1),
        ceiling: None,
        cores: 2,
        repeats: 0,
        rule: Rule { pairs: 8, precision: 0.0 },
        second_look: false,
    }
}

#[test]
fn a_contest_whose_runs_or_checks_take_longer_than_thought_ends_at_its_deadline_all_the_same() {
    let candidates = || {
        let change = |poll| candidate("x", Chosen { poll: Some(poll), ..Chosen::default() });
        std::iter::once(candidate("as before", Chosen::default())).chain((0..5).map(change)).collect()
    };
    let objective = Objective::default();
    // Runs take ten seconds instead of one.
    let mut runner = Planted { speed: |_| (0.1, 0.1), ..Planted::default() };
    let outcome = contest(&mut runner, candidates(), terms(&objective, 12)).expect("an outcome");
    assert_eq!(runner.runs, 2, "{:?}", runner.clock);
    // An unfinished round does not count.
    assert!(outcome.candidates.iter().all(|candidate| candidate.samples.is_empty()));
    assert_eq!(outcome.cut_short.as_deref(), Some("undecided after 0 rounds: out of time"));

    // Two rounds take about twelve seconds. A candidate whose output was not checked does not win.
    let speed: fn(&Chosen) -> (f64, f64) =
        |settings| if settings.poll == Some(4) { (1.5, 1.5) } else { (1.0, 1.0) };
    let mut runner = Planted { speed, look: Duration::from_secs(10), ..Planted::default() };
    let outcome = contest(&mut runner, candidates(), terms(&objective, 15)).expect("an outcome");
    let looked = outcome.candidates.iter().filter(|candidate| candidate.output.is_some()).count();
    assert_eq!((looked, outcome.winner), (1, 0));
    assert_eq!(outcome.cut_short.as_deref(), Some("undecided after 2 rounds: out of time"));
}

#[test]
fn a_hurried_tuning_replaces_no_choice() {
    let task = task("rag", vec![layout()]);
    let mut runner = Planted { speed: unpacked, ..Planted::default() };
    let good = run(&task, &mut runner).expect("an entry");
    let chosen = good.chosen.clone();
    assert!(!chosen.is_default());
    let nothing = Entry { chosen: Chosen::default(), confirmation: None, ..good.clone() };
    let mut undecided = nothing.clone();
    undecided.stages[0].winner = 0;
    undecided.stages[0].cut_short = Some("not tried".to_string());
    let mut against = undecided.clone();
    against.confirmation = good.confirmation.clone();
    let mut too_few = nothing.clone();
    too_few.confirmation = good.confirmation.clone();
    let few = too_few.confirmation.as_mut().expect("a confirmation");
    few.total.pairs = 2;
    let none = Chosen::default();
    let other = Chosen { poll: Some(0), ..Chosen::default() };
    let cases = [
        (&good, &good, &chosen, true),
        (&good, &nothing, &none, true),
        (&good, &undecided, &none, false),
        (&nothing, &undecided, &none, true),
        (&good, &against, &chosen, true),
        (&good, &against, &other, false),
        (&good, &too_few, &chosen, false),
    ];
    for (number, (old, new, tried, expected)) in cases.into_iter().enumerate() {
        assert_eq!(may_replace(old, new, tried), expected, "case {number}");
    }
}
