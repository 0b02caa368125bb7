//! Long generation with A and with B. The checks cover the growth of memory and the drift of speed and CPU use.
//!
//! As a context fills up, every engine becomes slower and its KV cache becomes larger. Therefore B is compared with
//! A, not with a constant.

use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use build_info::Bytes;
use host::nvml::LibrarySource;
use host::process::{cpu_seconds, resident};
use measure::{GpuUse, GpuWatch, Round, Trace, TraceWatch, Watch, median, thinned, trace};
use serde::{Deserialize, Serialize};

use super::engine::{self, Broken, EngineEvent, Stay};
use super::output::{SEED, TEMPERATURE};
use super::subject::Subject;
use super::verdict::{Check, CheckState};

/// Initial interval between samples, in seconds.
const EVERY: f64 = 0.1;

/// Minimum number of samples in a quarter of the run for the quarter's figures to count.
const FEWEST: usize = 3;

/// Maximum growth of B's memory beyond A's, in bytes. The limit allows for huge pages of two megabytes and for memory
/// that allocators keep.
const GROWTH: f64 = (16 << 20) as f64;

/// Maximum growth of B's memory beyond A's, as a fraction of A's peak.
const GROWTH_PART: f64 = 0.02;

/// Maximum difference between A's and B's change of speed or CPU use, as a fraction of A's change. A run of
/// several minutes is only one sample: on a machine with other load, two runs of the same build differ by several per
/// cent.
const DRIFT: f64 = 0.10;

/// Number of cores that other processes may use before a drift is attributed to the other processes.
const OTHERS: f64 = 0.25;

/// State of a run at one time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LongSample {
    /// Seconds since the first token.
    pub seconds: f64,
    /// Bytes of text received so far. [`LongSample::tokens`] is computed from this number at the end.
    pub bytes: usize,
    /// Number of tokens so far, estimated from the bytes of text.
    pub tokens: f64,
    /// CPU seconds (user and system) since the start of the process.
    pub cpu_seconds: f64,
    /// Resident memory in bytes.
    pub resident: u64,
}

/// Run of one engine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LongRun {
    /// Seconds from the first token to the last.
    pub seconds: f64,
    /// Seconds of the whole process, including loading the model.
    pub process_seconds: f64,
    /// Tokens per second in each quarter of the tokens; empty if the run was too short.
    pub speed: Vec<f64>,
    /// Number of CPUs kept busy in each quarter.
    pub cpus: Vec<f64>,
    /// Growth of memory over the last three quarters in bytes, from a linear regression of the samples.
    pub growth: Option<f64>,
    /// Peak resident memory in bytes.
    pub most: u64,
    /// Load on the machine from other processes.
    pub round: Round,
    /// Use of each NVIDIA GPU, including the time of loading the model; empty if no GPU computes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<GpuUse>,
    /// Samples in order.
    pub samples: Vec<LongSample>,
    /// Trace of the CPUs and the GPUs, if a GPU computes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<Trace>,
}

/// Runs of both sides.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Long {
    /// Number of tokens of each run.
    pub tokens: u32,
    /// Completed runs of A and B, in this order; if B failed in its first run, also A's and B's second runs.
    pub runs: Vec<LongRun>,
}

/// Input of the generations.
#[derive(Clone, Copy)]
pub struct Text<'a> {
    /// Path of the model.
    pub model: &'a Path,
    /// Path of the prompt's file, and number of tokens of the prompt.
    pub prompt: (&'a Path, usize),
    /// Number of tokens to generate.
    pub tokens: u32,
    /// NVIDIA driver to query during the run, if a GPU computes.
    pub driver: Option<&'a LibrarySource>,
}

/// Runs A, then B. If B fails, runs B and A once more, because a single long run is only one sample. `long` receives
/// the measurements even if a run fails. Calls `tell` with the number of completed runs and the total number of runs.
pub fn run(
    subjects: [&Subject; 2],
    text: Text<'_>,
    long: &mut Option<Long>,
    mut tell: impl FnMut(u64, u64),
) -> Result<()> {
    once(subjects, text, long, &mut tell)?;
    let Some(long) = long else { return Ok(()) };
    if !long.checks().iter().any(|check| check.state == CheckState::Failed) {
        return Ok(());
    }
    let [a, b] = subjects;
    let stay = Stay::after(long.runs[0].process_seconds);
    tell(2, 4);
    let of_b = one(b, text, stay)?;
    tell(3, 4);
    let of_a = one(a, text, stay)?;
    long.runs.extend([of_a, of_b]);
    Ok(())
}

/// Runs A, then B, once each.
pub fn once(
    subjects: [&Subject; 2],
    text: Text<'_>,
    long: &mut Option<Long>,
    mut tell: impl FnMut(u64, u64),
) -> Result<()> {
    let long = long.insert(Long { tokens: text.tokens, runs: Vec::new() });
    let mut stay = Stay::forever();
    for (done, subject) in subjects.into_iter().enumerate() {
        tell(done as u64, 2);
        long.runs.push(one(subject, text, stay)?);
        stay = Stay::after(long.runs[0].process_seconds);
    }
    Ok(())
}

fn one(subject: &Subject, text: Text<'_>, stay: Stay) -> Result<LongRun> {
    let Text { model, prompt: (prompt, prompt_tokens), tokens, driver } = text;
    // llama.cpp rounds context sizes up to multiples of 256 tokens.
    let context = (tokens as usize + prompt_tokens + 1).next_multiple_of(256);
    let mut arguments: Vec<OsString> = vec!["run".into(), "--ignore-eos".into(), "-m".into(), model.into()];
    arguments.extend(["-f".into(), prompt.into(), "-n".into(), tokens.to_string().into()]);
    arguments.extend(["-c".into(), context.to_string().into()]);
    arguments.extend(["--seed", SEED, "--temp", TEMPERATURE].map(OsString::from));
    let watch = Watch::start();
    let gpus = driver.and_then(|driver| GpuWatch::of(driver, Duration::ZERO));
    let mut recorder = Recorder::default();
    let mut tracer = None;
    let ended = engine::run(subject, arguments, stay, &mut |pid, event| {
        if let EngineEvent::Output(bytes) = event {
            recorder.heard(bytes.len());
            // Start at the first text, because prefill is not part of decode.
            if tracer.is_none() {
                tracer = driver.map(|driver| TraceWatch::start(driver.clone(), trace::EVERY));
            }
        }
        recorder.look(|| resident(pid).zip(cpu_seconds(pid)));
    })?;
    if recorder.bytes == 0 {
        return Err(Broken::new(
            subject.side,
            format!("requested {tokens} tokens, but the engine printed no text"),
        )
        .into());
    }
    let trace = tracer.map(|tracer| tracer.end(recorder.end));
    let run = recorder.finish(tokens, watch.stop());
    let gpus = gpus.map(|gpus| gpus.read()).unwrap_or_default();
    Ok(LongRun { process_seconds: ended.seconds, gpus, trace, ..run })
}

/// Recorder that takes samples during a run.
#[derive(Default)]
struct Recorder {
    bytes: usize,
    first: Option<Instant>,
    /// Time of the last sample in seconds.
    last: f64,
    /// Time of the last text in seconds.
    end: f64,
    every: f64,
    samples: Vec<LongSample>,
}

impl Recorder {
    fn heard(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.end = self.first.get_or_insert_with(Instant::now).elapsed().as_secs_f64();
    }

    fn look(&mut self, read: impl FnOnce() -> Option<(u64, f64)>) {
        if self.bytes == 0 {
            return;
        }
        let seconds = self.first.get_or_insert_with(Instant::now).elapsed().as_secs_f64();
        if seconds - self.last < self.every.max(EVERY) && !self.samples.is_empty() {
            return;
        }
        // An ended process has no readings.
        let Some((resident, cpu_seconds)) = read() else { return };
        self.last = seconds;
        self.add(LongSample { seconds, bytes: self.bytes, tokens: 0.0, cpu_seconds, resident });
    }

    fn add(&mut self, sample: LongSample) {
        if thinned::push(&mut self.samples, sample) {
            self.every = 2.0 * self.every.max(EVERY);
        }
    }

    fn finish(mut self, tokens: u32, round: Round) -> LongRun {
        let all = self.bytes.max(1) as f64;
        for sample in &mut self.samples {
            sample.tokens = f64::from(tokens) * sample.bytes as f64 / all;
        }
        LongRun::new(self.samples, self.end, f64::from(tokens), round)
    }
}

impl LongRun {
    fn new(samples: Vec<LongSample>, seconds: f64, tokens: f64, round: Round) -> Self {
        let quarters: Vec<(f64, f64)> =
            (0..4).filter_map(|quarter| part(&samples, tokens, quarter)).collect();
        let quarters = if quarters.len() == 4 { quarters } else { Vec::new() };
        let (speed, cpus): (Vec<f64>, Vec<f64>) = quarters.into_iter().unzip();
        let later: Vec<(f64, f64)> = samples
            .iter()
            .filter(|sample| sample.tokens >= tokens / 4.0)
            .map(|sample| (sample.tokens, sample.resident as f64))
            .collect();
        let growth = (!speed.is_empty()).then(|| slope(&later) * 0.75 * tokens);
        let most = samples.iter().map(|sample| sample.resident).max().unwrap_or(0);
        let (process_seconds, gpus, trace) = (seconds, Vec::new(), None);
        Self { seconds, process_seconds, speed, cpus, growth, most, round, gpus, samples, trace }
    }

    /// Returns the last quarter's value as a multiple of the first quarter's.
    fn drift(values: &[f64]) -> Option<f64> {
        values.first().zip(values.last()).map(|(first, last)| last / first).filter(|drift| drift.is_finite())
    }

    fn is_disturbed(&self) -> bool {
        self.round.cores_busy_elsewhere.is_some_and(|cores| cores > OTHERS)
    }
}

/// Returns the tokens per second and the number of busy CPUs in a quarter of the tokens.
fn part(samples: &[LongSample], tokens: f64, quarter: u32) -> Option<(f64, f64)> {
    let from = tokens * f64::from(quarter) / 4.0;
    let inside: Vec<&LongSample> = samples
        .iter()
        .filter(|sample| sample.tokens >= from && sample.tokens <= from + tokens / 4.0)
        .collect();
    if inside.len() < FEWEST {
        return None;
    }
    let (first, last) = (inside.first()?, inside.last()?);
    let seconds = last.seconds - first.seconds;
    (seconds > 0.0)
        .then(|| ((last.tokens - first.tokens) / seconds, (last.cpu_seconds - first.cpu_seconds) / seconds))
}

/// Returns the slope of the least-squares line through `points`.
fn slope(points: &[(f64, f64)]) -> f64 {
    let count = points.len() as f64;
    let mean = |pick: fn(&(f64, f64)) -> f64| points.iter().map(pick).sum::<f64>() / count;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let (over, under) = points.iter().fold((0.0, 0.0), |(over, under), point| {
        (over + (point.0 - x) * (point.1 - y), under + (point.0 - x).powi(2))
    });
    if under > 0.0 { over / under } else { 0.0 }
}

impl Long {
    /// Returns the checks of the runs.
    pub fn checks(&self) -> Vec<Check> {
        let mut pairs = self.runs.chunks_exact(2).map(|pair| self.of(&pair[0], &pair[1]));
        let Some(mut checks) = pairs.next() else { return Vec::new() };
        for again in pairs {
            for check in checks.iter_mut().filter(|check| check.state == CheckState::Failed) {
                let confirmed =
                    again.iter().any(|other| other.name == check.name && other.state == CheckState::Failed);
                if !confirmed {
                    check.state = CheckState::Unclear;
                    let name = &check.name;
                    check.reason =
                        Some(format!("the {name} check failed in one long run of B, but not in the other"));
                }
            }
        }
        checks
    }

    /// Returns the checks of a pair of runs.
    fn of(&self, a: &LongRun, b: &LongRun) -> Vec<Check> {
        let title = format!("long run, {} tokens", self.tokens);
        let show =
            |run: &LongRun| format!("{:.1} t/s", f64::from(self.tokens) / run.seconds.max(f64::MIN_POSITIVE));
        let whole = Check::new(title, CheckState::Told, "both completed".to_string()).with(show(a), show(b));
        if a.speed.is_empty() || b.speed.is_empty() {
            let short = Check::new("drift", CheckState::Unclear, "too short for a verdict".to_string());
            return vec![
                whole,
                short.because("the long run was too short to measure drift: increase --long".to_string()),
            ];
        }
        let mut checks = vec![whole];
        checks.extend(memory(a, b));
        checks.extend(drift("t/s drift", a, b, |run| &run.speed));
        checks.extend(drift("CPU use drift", a, b, |run| &run.cpus));
        checks
    }
}

fn memory(a: &LongRun, b: &LongRun) -> Option<Check> {
    let (of_a, of_b) = a.growth.zip(b.growth)?;
    let show = |growth: f64| {
        let sign = if growth < 0.0 { "-" } else { "+" };
        format!("{sign}{}", Bytes(growth.abs() as u64))
    };
    let most = GROWTH.max(GROWTH_PART * a.most as f64);
    let check =
        |state, said: &str| Check::new("memory growth", state, said.to_string()).with(show(of_a), show(of_b));
    Some(if of_b - of_a > most {
        check(CheckState::Failed, "grows").because(format!(
            "over the last three quarters of the long run, B's memory grows by {} and A's by {}",
            show(of_b),
            show(of_a)
        ))
    } else {
        check(CheckState::Passed, "not more than A's")
    })
}

/// Compares B's change from the first quarter to the last with A's change.
fn drift(name: &str, a: &LongRun, b: &LongRun, pick: impl Fn(&LongRun) -> &Vec<f64>) -> Option<Check> {
    let (of_a, of_b) = LongRun::drift(pick(a)).zip(LongRun::drift(pick(b)))?;
    let show = |drift: f64| format!("{:+.1} %", 100.0 * (drift - 1.0));
    let against = of_b / of_a;
    let check = |state, said: String| Check::new(name, state, said).with(show(of_a), show(of_b));
    // B may slow down less than A. CPU use must not drift in either direction.
    let worse = against < 1.0 - DRIFT || (name != "t/s drift" && against > 1.0 + DRIFT);
    Some(if !worse {
        check(CheckState::Passed, format!("{against:.3}"))
    } else if a.is_disturbed() || b.is_disturbed() {
        let elsewhere = [a, b].map(|run| run.round.cores_busy_elsewhere.unwrap_or_default());
        check(CheckState::Unclear, "disturbed".to_string()).because(format!(
            "the machine was too disturbed to measure the {name}: other processes kept {:.2} cores busy",
            median(&elsewhere)
        ))
    } else {
        check(CheckState::Failed, format!("{against:.3}")).because(format!(
            "from the first quarter of the long run to the last, B's {name} is {} and A's is {}",
            show(of_b),
            show(of_a)
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::super::subject::Side;
    use super::super::testing::Stage;
    use super::*;

    /// Returns a run of 10,000 tokens that slows down to `slow`, uses `cpus` CPUs at the end and leaks `leak` bytes
    /// per token.
    fn run(slow: f64, cpus: f64, leak: f64, elsewhere: f64) -> LongRun {
        let (mut seconds, mut cpu_seconds, mut samples) = (0.0, 5.0, Vec::new());
        for step in 0..=100 {
            let share = f64::from(step) / 100.0;
            let tokens = 10_000.0 * share;
            samples.push(LongSample {
                seconds,
                bytes: tokens as usize,
                tokens,
                cpu_seconds,
                resident: (1e9 + leak * tokens) as u64,
            });
            let took = 1.0 / (1.0 - (1.0 - slow) * share);
            seconds += took;
            cpu_seconds += took * (2.0 - (2.0 - cpus) * share);
        }
        let round = Round { seconds, load_average: None, cores_busy_elsewhere: Some(elsewhere) };
        LongRun::new(samples, seconds, 10_000.0, round)
    }

    #[test]
    fn b_is_held_against_a_and_not_against_a_flat_line() {
        use CheckState::{Failed, Passed, Unclear};
        let kib = 1024.0;
        let cases = [
            // Both runs slow down as the contexts fill and the caches grow.
            (run(0.7, 2.0, 8.0 * kib, 0.0), run(0.7, 2.0, 8.0 * kib, 0.0), [Passed, Passed, Passed]),
            (run(0.7, 2.0, 8.0 * kib, 0.0), run(0.9, 2.0, 4.0 * kib, 0.0), [Passed, Passed, Passed]),
            (run(0.9, 2.0, 0.0, 0.0), run(0.9, 2.0, 4.0 * kib, 0.0), [Failed, Passed, Passed]),
            (run(0.9, 2.0, 0.0, 0.0), run(0.6, 2.0, 0.0, 0.0), [Passed, Failed, Passed]),
            (run(0.9, 2.0, 0.0, 0.0), run(0.6, 2.0, 0.0, 0.8), [Passed, Unclear, Passed]),
            (run(0.9, 2.0, 0.0, 0.0), run(0.9, 1.2, 0.0, 0.0), [Passed, Passed, Failed]),
            (run(0.9, 1.2, 0.0, 0.0), run(0.9, 2.0, 0.0, 0.0), [Passed, Passed, Failed]),
        ];
        for (a, b, expected) in cases {
            let long = Long { tokens: 10_000, runs: vec![a, b] };
            let states: Vec<CheckState> = long.checks().iter().skip(1).map(|check| check.state).collect();
            assert_eq!(states, expected, "{:#?}", long.checks());
        }
    }

    #[test]
    fn what_fails_once_is_unclear_and_what_fails_twice_is_a_failure() {
        let (steady, slowing) = (run(0.9, 2.0, 0.0, 0.0), run(0.6, 2.0, 0.0, 0.0));
        for (again, expected) in [(&steady, CheckState::Unclear), (&slowing, CheckState::Failed)] {
            let runs = vec![steady.clone(), slowing.clone(), steady.clone(), again.clone()];
            let checks = Long { tokens: 10_000, runs }.checks();
            let drift = checks.iter().find(|check| check.name == "t/s drift").unwrap();
            assert_eq!(drift.state, expected, "{checks:#?}");
            assert!(drift.reason.is_some());
        }
    }

    #[test]
    fn growth_and_quarters_are_those_that_were_planted() {
        let found = run(0.5, 1.0, 1024.0, 0.0);
        assert!((found.growth.unwrap() - 1024.0 * 7500.0).abs() < 2000.0, "{:?}", found.growth);
        let drift = LongRun::drift(&found.speed).unwrap();
        assert!((0.5..0.7).contains(&drift), "{drift}");
        assert!(found.cpus[0] > 1.8 && found.cpus[3] < 1.3, "{:?}", found.cpus);
    }

    #[test]
    fn a_run_that_is_too_short_is_not_judged_and_a_very_long_one_is_thinned_out() {
        let mut recorder = Recorder { bytes: 1, ..Recorder::default() };
        recorder.look(|| Some((1, 1.0)));
        let round = Round { seconds: 1.0, load_average: None, cores_busy_elsewhere: None };
        let short = recorder.finish(100, round);
        assert!(short.speed.is_empty());
        let long = Long { tokens: 100, runs: vec![short.clone(), short] };
        assert_eq!(long.checks()[1].state, CheckState::Unclear);

        let mut recorder = Recorder { bytes: 10_000, ..Recorder::default() };
        for second in 0..10_000usize {
            let sample = LongSample {
                seconds: second as f64,
                bytes: second,
                tokens: 0.0,
                cpu_seconds: 0.0,
                resident: 1,
            };
            recorder.add(sample);
        }
        assert!(recorder.samples.len() <= thinned::MOST && recorder.every >= 2.0 * EVERY);
        assert!(recorder.samples.windows(2).all(|pair| pair[0].seconds < pair[1].seconds));
    }

    #[test]
    fn loading_counts_for_how_long_b_may_take() {
        let stage = Stage::new();
        let subject = stage.subject(Side::A, "sleep 0.5; printf text; sleep 0.1; printf text");
        let (model, prompt) = (Path::new("m.gguf"), Path::new("prompt.txt"));
        let text = Text { model, prompt: (prompt, 10), tokens: 2, driver: None };
        let found = one(&subject, text, Stay::forever()).unwrap();
        assert!(found.seconds < 0.5 && found.process_seconds >= 0.6, "{found:?}");
    }

    #[test]
    fn this_process_has_memory_and_took_time() {
        let own = std::process::id();
        assert!(resident(own).is_some_and(|bytes| bytes > 1 << 20));
        assert!(cpu_seconds(own).is_some());
        assert!(resident(0).is_none() && cpu_seconds(0).is_none());
    }
}
