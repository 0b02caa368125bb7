//! Figures derived from the measurements: ratios by round, and verdicts against the goals.

use build_info::Bytes;
use measure::{Ratio, median, ratio};

use super::bench::GpuBenchRow;
use super::engine::WAIT;
use super::plan::Switch;
use super::report::{
    Decode, Differing, Figure, FigureVerdict, ModelReport, Pair, ProgramComparison, Refusal, Report, Run,
    Sampling, Wait, Who,
};

/// Goal for the ratio of the engine's speed to llama-bench's speed.
const SPEED: f64 = 1.0;

/// Minimum number of pairs for the verdict that a goal was missed.
const ENOUGH: usize = 5;

/// Goal for the bandwidth of decode, as a fraction of the GPU's copy bandwidth.
const BANDWIDTH: f64 = 0.8;

/// Lowest copy bandwidth measured on any GPU, as a fraction of the GPU's theoretical bandwidth (clock times bus
/// width). Decode that stays below [`BANDWIDTH`] of this copy bandwidth misses the goal on every GPU.
const LEAST_COPY: f64 = 0.7;

/// Goal for CPU use: maximum number of busy CPUs in decode while the device chooses the tokens.
const CPUS: f64 = 0.25;

/// Size from which weights exceed every cache.
const LARGE: Bytes = Bytes(1_000_000_000);

/// Compares every test of `model` with llama-bench's test. Also compares decode tests with sampling.
pub fn comparisons(model: &ModelReport) -> Vec<ProgramComparison> {
    let theirs = values(&model.runs, Who::LlamaBench);
    let mut all: Vec<(String, Sampling, Vec<Value>)> = Vec::new();
    for value in values(&model.runs, Who::Anneal).into_iter().chain(steady(model)) {
        let is_it =
            |known: &&mut (String, Sampling, Vec<Value>)| known.0 == value.test && known.1 == value.sampling;
        match all.iter_mut().find(is_it) {
            Some((.., values)) => values.push(value),
            None => all.push((value.test.clone(), value.sampling, vec![value])),
        }
    }
    all.into_iter().map(|(test, sampling, ours)| compared(test, sampling, &ours, &theirs)).collect()
}

/// Speed of a test in one round.
struct Value {
    /// llama-bench's test to compare with.
    test: String,
    sampling: Sampling,
    round: u32,
    speed: f64,
}

fn values(runs: &[Run], by: Who) -> Vec<Value> {
    let value = |round: u32, row: &GpuBenchRow| Value {
        test: their_test(row),
        sampling: if row.end_to_end { Sampling::Default } else { Sampling::None },
        round,
        speed: median(&row.samples),
    };
    let runs = runs.iter().filter(|run| run.by == by);
    runs.flat_map(|run| run.rows.iter().map(move |row| value(run.round, row))).collect()
}

/// Returns the steady decodes of the rounds. A steady decode starts from a short prompt and soon leaves the beginning
/// of the context. Nevertheless, it is compared with llama-bench's decode at the beginning of the context.
fn steady(model: &ModelReport) -> Vec<Value> {
    let rows = model.runs.iter().flat_map(|run| &run.rows);
    let Some(test) = rows.map(their_test).find(|test| test.starts_with("tg") && !test.contains('@')) else {
        return Vec::new();
    };
    let value = |decode: &Decode| {
        let on_device = chosen_by_device(decode) > 0;
        Some(Value {
            test: test.clone(),
            sampling: if on_device { Sampling::GreedyOnDevice } else { Sampling::GreedyOnHost },
            round: decode.round?,
            speed: decode.tokens_per_second?,
        })
    };
    model.decodes.iter().filter_map(value).collect()
}

/// Returns the name of the llama-bench test to compare `row` with. For an end-to-end test, this is the decode at a
/// depth equal to the length of the prompt.
fn their_test(row: &GpuBenchRow) -> String {
    match row.end_to_end {
        // llama-bench has no test at the depth of a short prompt, so its test at depth 0 is used. The prompt's tokens
        // can only make the engine's result slower.
        true => {
            build_info::bench_row::test_name(0, row.n_gen, if row.n_prompt > 64 { row.n_prompt } else { 0 })
        }
        false => row.test.clone(),
    }
}

fn compared(test: String, sampling: Sampling, ours: &[Value], theirs: &[Value]) -> ProgramComparison {
    let theirs: Vec<&Value> = theirs.iter().filter(|value| value.test == test).collect();
    let (a, b): (Vec<f64>, Vec<f64>) = ours
        .iter()
        .filter_map(|ours| {
            let theirs = theirs.iter().find(|theirs| theirs.round == ours.round)?;
            Some((ours.speed, theirs.speed))
        })
        .filter(|(ours, theirs)| ours.is_finite() && *theirs > 0.0)
        .unzip();
    let speed = |values: &mut dyn Iterator<Item = f64>| median(&values.collect::<Vec<f64>>());
    ProgramComparison {
        anneal: speed(&mut ours.iter().map(|value| value.speed)),
        llama_bench: Some(speed(&mut theirs.iter().map(|value| value.speed)))
            .filter(|speed| speed.is_finite()),
        ratio: (!a.is_empty()).then(|| ratio(&a, &b)),
        test,
        sampling,
    }
}

/// Returns the settings in which the last runs of both programs differ.
pub fn differing(runs: &[Run]) -> Vec<Differing> {
    let last =
        |by: Who| runs.iter().rev().find(|run| run.by == by && run.rows.iter().all(|row| !row.end_to_end));
    let (Some(ours), Some(theirs)) = (last(Who::Anneal), last(Who::LlamaBench)) else { return Vec::new() };
    let differ = |(name, ours): (&String, &serde_json::Value)| {
        let theirs = theirs.settings.get(name).filter(|theirs| *theirs != ours)?;
        Some(Differing { setting: name.clone(), anneal: ours.clone(), llama_bench: theirs.clone() })
    };
    ours.settings.iter().filter_map(differ).collect()
}

/// Returns all figures with their goals and verdicts.
pub fn figures(report: &Report) -> Vec<Figure> {
    let mut all = Vec::new();
    all.extend(report.refusal.as_ref().map(refused));
    for (number, model) in report.models.iter().enumerate().filter(|(_, model)| model.skipped.is_none()) {
        // Only the first model has pairs.
        let pairs = if number == 0 { report.pairs.as_slice() } else { &[] };
        all.extend(of_model(model, pairs, &MemorySpeed::of(report)));
    }
    for switch in Switch::ALL {
        all.extend(switched(report, switch));
    }
    all
}

/// Memory bandwidth of the GPU in bytes per second; the highest bandwidth if GPUs differ.
#[derive(Clone, Copy, Debug, Default)]
struct MemorySpeed {
    /// Bandwidth computed from clock and bus width.
    theoretical: Option<f64>,
    /// Bandwidth measured by copying.
    copy: Option<f64>,
}

impl MemorySpeed {
    fn of(report: &Report) -> Self {
        let told = report.info.as_ref().and_then(|info| info["copy_bandwidth"].as_array());
        let copies = told.into_iter().flatten().filter_map(|device| device["bytes_per_second"].as_f64());
        Self {
            theoretical: report.cards.iter().filter_map(|card| card.theoretical_bandwidth).reduce(f64::max),
            copy: copies.filter(|copy| *copy > 0.0).reduce(f64::max),
        }
    }
}

fn of_model(model: &ModelReport, pairs: &[Pair], memory: &MemorySpeed) -> Vec<Figure> {
    let mut all = Vec::new();
    let mut put = |figure: Figure| all.push(Figure { model: Some(model.name.clone()), ..figure });
    if let Some(placement) = &model.placement {
        let faults = (!placement.full).then(|| placement.faults.join("; "));
        put(yes_or_no("whole model on the GPU", placement.full, faults));
    }
    if let Some(determinism) = &model.determinism {
        let equal = determinism.equal == determinism.tokens;
        let note = format!("{} of {} tokens", determinism.equal, determinism.tokens);
        put(yes_or_no("same tokens in both runs", equal, Some(note)));
    }
    for comparison in &model.comparisons {
        put(speed(comparison));
    }
    if let Some(share) = bandwidth(model, memory) {
        put(share);
    }
    if let Some(host) = host_cpu(&model.decodes, pairs) {
        put(host);
    }
    all
}

fn figure(what: impl Into<String>, goal: String, value: Option<f64>, verdict: FigureVerdict) -> Figure {
    Figure {
        what: what.into(),
        model: None,
        goal,
        value,
        verdict,
        note: None,
        effective_bandwidth: None,
        theoretical_bandwidth: None,
        measured_copy_bandwidth: None,
    }
}

fn yes_or_no(what: &str, is_so: bool, note: Option<String>) -> Figure {
    let verdict = if is_so { FigureVerdict::Pass } else { FigureVerdict::Miss };
    Figure { note, ..figure(what, "yes".to_string(), None, verdict) }
}

fn refused(refusal: &Refusal) -> Figure {
    let is_so = refusal.code == Some(refusal.expected);
    let code = refusal.code.map_or("a signal".to_string(), |code| code.to_string());
    yes_or_no("refused without a GPU", is_so, Some(format!("exit code {code}")))
}

fn speed(comparison: &ProgramComparison) -> Figure {
    let what = format!("{} against llama-bench{}", comparison.test, comparison.sampling.words());
    let goal = format!("≥ {SPEED:.1}");
    let Some(ratio) = &comparison.ratio else {
        return Figure {
            note: Some(format!("{:.1} t/s; llama-bench was not measured", comparison.anneal)),
            ..figure(what, goal, None, FigureVerdict::NotMeasured)
        };
    };
    Figure { note: Some(interval(ratio)), ..figure(what, goal, Some(ratio.median), at_least(ratio, SPEED)) }
}

/// Returns a pass if the median reaches `goal`. Returns a miss if the whole interval is below `goal` and there are
/// enough pairs. Otherwise returns an unclear verdict.
fn at_least(ratio: &Ratio, goal: f64) -> FigureVerdict {
    if ratio.median >= goal {
        FigureVerdict::Pass
    } else if ratio.high < goal && ratio.pairs >= ENOUGH {
        FigureVerdict::Miss
    } else {
        FigureVerdict::Unclear
    }
}

fn interval(ratio: &Ratio) -> String {
    let plural = if ratio.pairs == 1 { "" } else { "s" };
    format!("[{:.3}, {:.3}] of {} pair{plural}", ratio.low, ratio.high, ratio.pairs)
}

/// Returns the bandwidth of decode at the beginning of the context, where only weights are read.
fn bandwidth(model: &ModelReport, memory: &MemorySpeed) -> Option<Figure> {
    let decode = model.comparisons.iter().find(|comparison| {
        comparison.sampling == Sampling::None
            && comparison.test.starts_with("tg")
            && !comparison.test.contains('@')
    })?;
    let effective = decode.anneal * model.bytes_per_token?.0 as f64;
    if !effective.is_finite() {
        return None;
    }
    let (share, of_what) = match (memory.copy, memory.theoretical) {
        (Some(copy), _) => (Some(effective / copy), "of the measured copy bandwidth"),
        (None, Some(most)) => (Some(effective / most), "of the theoretical bandwidth"),
        (None, None) => (None, "the memory bandwidth is unknown"),
    };
    // The goal applies to weights that exceed any cache, in a type whose decode is limited only by memory reads.
    let counts = model.name.quant() == "Q8_0" && model.bytes >= LARGE;
    let (verdict, more) = match share {
        None => (FigureVerdict::NotMeasured, ""),
        Some(_) if !counts => (FigureVerdict::Told, ""),
        Some(share) if share >= BANDWIDTH => (FigureVerdict::Pass, ""),
        Some(_) if memory.copy.is_some() => (FigureVerdict::Miss, ""),
        Some(share) if share < BANDWIDTH * LEAST_COPY => {
            (FigureVerdict::Miss, "; missed at any copy bandwidth")
        }
        Some(_) => (FigureVerdict::Unclear, "; the copy bandwidth was not measured"),
    };
    let goal = match counts {
        true => format!("≥ {:.0} % of the copy bandwidth", 100.0 * BANDWIDTH),
        false => "none".to_string(),
    };
    Some(Figure {
        note: Some(format!("{of_what}{more}")),
        effective_bandwidth: Some(effective),
        theoretical_bandwidth: memory.theoretical,
        measured_copy_bandwidth: memory.copy,
        ..figure("share of bandwidth in decode", goal, share, verdict)
    })
}

/// Returns the CPU use of decodes in which the device chose the tokens. Prefers decodes in which the host slept.
fn host_cpu(decodes: &[Decode], pairs: &[Pair]) -> Option<Figure> {
    let of_device = |decode: &&Decode| decode.device_sampling;
    let waiting = pairs.iter().filter(|pair| pair.switch == Switch::Waiting);
    let mut chosen: Vec<&Decode> = waiting.map(|pair| &pair.on).filter(of_device).collect();
    let has_slept = !chosen.is_empty();
    if !has_slept {
        chosen = decodes.iter().filter(of_device).collect();
    }
    let cpus: Vec<f64> = chosen.iter().filter_map(|decode| decode.cpus).collect();
    if cpus.is_empty() {
        return None;
    }
    let value = median(&cpus);
    let on_device = chosen.iter().all(|decode| chosen_by_device(decode) > 0);
    let verdict = match on_device {
        false => FigureVerdict::NotMeasured,
        true if value <= CPUS => FigureVerdict::Pass,
        true => FigureVerdict::Miss,
    };
    let note = match (on_device, has_slept) {
        (false, _) => Some("the device did not choose the tokens".to_string()),
        (true, true) => Some(format!("with {WAIT}={}", Wait::Block.name())),
        (true, false) => None,
    };
    let what = "CPUs busy in decode, device sampling";
    Some(Figure { note, ..figure(what, format!("≤ {CPUS}"), Some(value), verdict) })
}

/// Returns the number of tokens that the device chose; 0 if the program does not report it.
fn chosen_by_device(decode: &Decode) -> u32 {
    decode.chosen_on_device.unwrap_or(0)
}

/// Checks that the device sampled in the runs that requested device sampling and in no other runs. The check uses the
/// number of tokens that the device chose.
fn sampled_as_asked(pairs: &[&Pair]) -> Figure {
    let is_wrong =
        |pair: &&&Pair| chosen_by_device(&pair.on) < pair.on.tokens || chosen_by_device(&pair.off) > 0;
    let wrong = pairs.iter().find(is_wrong).map(|pair| {
        let (on, off) = (chosen_by_device(&pair.on), chosen_by_device(&pair.off));
        format!("of {} tokens, the device chose {on} with device sampling and {off} without", pair.on.tokens)
    });
    yes_or_no("device sampling only where requested", wrong.is_none(), wrong)
}

/// Returns the effect of a switch on speed. The text must be the same with the switch on and off.
fn switched(report: &Report, switch: Switch) -> Vec<Figure> {
    let pairs: Vec<&Pair> = report.pairs.iter().filter(|pair| pair.switch == switch).collect();
    if pairs.is_empty() {
        return Vec::new();
    }
    let model = report.models.first().map(|model| model.name.clone());
    let (on, off): (Vec<f64>, Vec<f64>) = pairs
        .iter()
        .filter_map(|pair| pair.on.tokens_per_second.zip(pair.off.tokens_per_second))
        .filter(|(_, off)| *off > 0.0)
        .unzip();
    let same = pairs.iter().all(|pair| pair.on.text == pair.off.text);
    let (same_text, against) = match switch {
        Switch::DeviceSampling | Switch::CudaGraphs => (
            format!("the same text with and without {switch}"),
            format!("decode with {switch} against without"),
        ),
        Switch::Waiting => {
            let [block, spin] = switch.sides();
            (
                "the same text in both wait modes of the host".to_string(),
                format!("decode with {WAIT}={block} against {spin}"),
            )
        }
    };
    let mut all = vec![yes_or_no(&same_text, same, None)];
    if switch == Switch::DeviceSampling {
        all.push(sampled_as_asked(&pairs));
    }
    if !on.is_empty() {
        let ratio = ratio(&on, &off);
        all.push(Figure {
            note: Some(format!("{}; {:.1} and {:.1} t/s", interval(&ratio), median(&on), median(&off))),
            ..figure(against, "none".into(), Some(ratio.median), FigureVerdict::Told)
        });
    }
    let spinning: Vec<f64> = pairs.iter().filter_map(|pair| pair.off.cpus).collect();
    if switch == Switch::Waiting && !spinning.is_empty() {
        let what = format!("CPUs busy in decode with {WAIT}={}", Wait::Spin.name());
        all.push(figure(what, "none".into(), Some(median(&spinning)), FigureVerdict::Told));
    }
    all.into_iter().map(|figure| Figure { model: model.clone(), ..figure }).collect()
}

#[cfg(test)]
mod tests;
