//! Decode on a GPU from its first token to its last, from one monitored run of each side. The result is shown but not
//! judged. Verdicts are based on the timed laps, which queries to the driver must not disturb.

use std::path::Path;

use build_info::Bytes;
use gguf::{GgufFile, Scalar, Value};
use host::nvml::Throttling;
use measure::Trace;

use super::long::{Long, LongRun};
use super::verdict::{Check, CheckState};

/// Number of tokens of the run if no long run is requested. Such a run takes long enough for
/// several readings from the driver.
const TOKENS: u32 = 1024;

/// Returns [`TOKENS`], or fewer if the model's training context has less room after the prompt. An engine may
/// refuse a longer context.
pub fn tokens(model: &Path, prompt_tokens: usize) -> u32 {
    let room = |trained: u32| (trained as usize).saturating_sub(prompt_tokens + 1).max(1);
    trained_context(model)
        .map_or(TOKENS, |trained| TOKENS.min(u32::try_from(room(trained)).unwrap_or(TOKENS)))
}

fn trained_context(model: &Path) -> Option<u32> {
    let file = GgufFile::open(model).ok()?;
    let Some(Value::Scalar(Scalar::String(architecture))) = file.get("general.architecture") else {
        return None;
    };
    file.u32(&format!("{architecture}.context_length")).filter(|trained| *trained > 0)
}

/// Returns the remarks on the first run of each side.
pub fn checks(long: &Long) -> Vec<Check> {
    let [a, b, ..] = &long.runs[..] else { return Vec::new() };
    let Some((of_a, of_b)) = a.trace.as_ref().zip(b.trace.as_ref()) else { return Vec::new() };
    let tokens = f64::from(long.tokens);
    let speed = |run: &LongRun| Some(tokens / run.seconds).filter(|speed| speed.is_finite());
    let mut checks = vec![
        row("steady t/s", [a, b].map(speed), |speed| format!("{speed:.1} t/s")),
        row("steady CPUs", [a, b].map(cpus), |cpus| format!("{cpus:.2} busy")),
        row("busiest core", [of_a, of_b].map(Trace::busiest_core), |share| format!("{:.0} %", 100.0 * share)),
    ];
    let missing =
        [(of_a, 'A'), (of_b, 'B')].into_iter().find_map(|(trace, side)| Some((missing(trace)?, side)));
    if let Some((why, side)) = missing {
        let said = format!("not measured for {side}: {why}");
        checks.push(Check::new("steady GPU", CheckState::Told, said));
        return checks;
    }
    let busy = [of_a, of_b].map(|trace| trace.utilisation(trace.busiest()));
    checks.push(row("steady GPU", busy, |share| format!("{:.0} % busy", 100.0 * share)));
    checks.push(clocks([of_a, of_b]));
    let peak = [of_a, of_b].map(|trace| trace.memory_peak().map(|bytes| bytes as f64));
    checks.push(row("GPU memory, steady", peak, |bytes| Bytes(bytes as u64).to_string()));
    checks.extend(pcie([a, b], [of_a, of_b], tokens));
    checks
}

/// Shows the values of both sides, and B's value as a multiple of A's; "not measured" for a missing value.
fn row(name: &str, [a, b]: [Option<f64>; 2], show: impl Fn(f64) -> String) -> Check {
    let told = |value: Option<f64>| value.map_or("not measured".to_string(), &show);
    Check::new(name, CheckState::Told, against(a, b)).with(told(a), told(b))
}

/// Formats B's value as a multiple of A's; empty if a value is missing.
fn against(a: Option<f64>, b: Option<f64>) -> String {
    a.zip(b).filter(|(a, _)| *a > 0.0).map_or(String::new(), |(a, b)| format!("{:.3}", b / a))
}

/// Returns the reason why the GPU readings are not shown. If a GPU was lost, its earlier readings are only in the
/// record.
fn missing(trace: &Trace) -> Option<&str> {
    let fault = || trace.gpus.iter().find_map(|gpu| gpu.fault.as_deref());
    let short = || trace.moments.is_empty().then_some("the run was too short");
    trace.missing.as_deref().or_else(fault).or_else(short)
}

/// Returns the number of CPUs that the process kept busy.
fn cpus(run: &LongRun) -> Option<f64> {
    let (first, last) = run.samples.first().zip(run.samples.last())?;
    let seconds = last.seconds - first.seconds;
    (seconds > 0.0).then(|| (last.cpu_seconds - first.cpu_seconds) / seconds)
}

/// Shows the mean clock of the busiest GPU, its lowest clock, and the fraction of time for which it was throttled.
fn clocks(traces: [&Trace; 2]) -> Check {
    let mean = |trace: &Trace| trace.mean(trace.busiest(), |gpu| gpu.sm_mhz.map(f64::from));
    let show = |trace: &Trace| {
        let Some(mhz) = mean(trace) else { return "not measured".to_string() };
        let of = || trace.moments.iter().filter_map(|moment| moment.gpus.get(trace.busiest()));
        let lowest = of().filter_map(|gpu| gpu.sm_mhz).min().unwrap_or_default();
        let why = || of().filter_map(|gpu| Throttling(gpu.throttling?).why());
        let mut reasons: Vec<&str> = why().collect();
        reasons.sort_unstable();
        reasons.dedup();
        let part = |reason: &str| {
            let looks = why().filter(|other| *other == reason).count();
            format!(
                "throttled by {reason} for {:.0} % of the time",
                100.0 * looks as f64 / of().count() as f64
            )
        };
        let held: String = reasons.into_iter().map(|reason| format!(", {}", part(reason))).collect();
        format!("{mhz:.0} MHz, lowest {lowest}{held}")
    };
    let [a, b] = traces.map(mean);
    Check::new("its SM clock", CheckState::Told, against(a, b)).with(show(traces[0]), show(traces[1]))
}

/// Shows the bytes per token over PCIe, in each direction.
fn pcie(runs: [&LongRun; 2], traces: [&Trace; 2], tokens: f64) -> Vec<Check> {
    let fault = traces.iter().flat_map(|trace| &trace.gpus).find_map(|gpu| gpu.pcie_fault.as_deref());
    if let Some(fault) = fault {
        return vec![Check::new("PCIe", CheckState::Told, format!("not measured: {fault}"))];
    }
    let [a, b] = [0, 1].map(|side| traces[side].pcie(runs[side].seconds));
    [("PCIe to GPU", 0), ("PCIe from GPU", 1)]
        .map(|(name, way)| {
            let a_token = |all: Option<[f64; 2]>| all.map(|all| all[way] / tokens);
            let mut check = row(name, [a_token(a), a_token(b)], |bytes| format!("{}/t", Bytes(bytes as u64)));
            if !check.said.is_empty() {
                check.said.push_str(", an estimate");
            }
            check
        })
        .into()
}

#[cfg(test)]
mod tests {
    use measure::Round;
    use measure::trace::{GpuMoment, Moment, Traced};

    use super::super::long::LongSample;
    use super::*;

    /// Returns a run of ten seconds that keeps `cpus` CPUs busy, with a GPU that receives `received` bytes per
    /// second.
    fn run(cpus: f64, received: f64) -> LongRun {
        let sample = |seconds: f64| LongSample {
            seconds,
            bytes: 1,
            tokens: 0.0,
            cpu_seconds: 3.0 + cpus * seconds,
            resident: 1,
        };
        let moment = |step: u32| Moment {
            seconds: f64::from(step),
            cores: vec![0.5, 0.98],
            gpus: vec![GpuMoment {
                utilisation: Some(0.9),
                memory: Some(u64::from(step + 1) << 30),
                sm_mhz: Some(if step == 3 { 1200 } else { 1980 }),
                watts: None,
                throttling: Some(if step < 5 { 4 } else { 1 }),
                pcie_received: Some(received),
                pcie_sent: Some(1024.0),
            }],
        };
        let gpus = vec![Traced { name: "A".to_string(), ..Traced::default() }];
        let trace = Trace { gpus, moments: (0..10).map(moment).collect(), missing: None };
        let round = Round { seconds: 10.0, load_average: None, cores_busy_elsewhere: None };
        LongRun {
            seconds: 10.0,
            process_seconds: 12.0,
            speed: Vec::new(),
            cpus: Vec::new(),
            growth: None,
            most: 0,
            round,
            gpus: Vec::new(),
            samples: vec![sample(0.0), sample(10.0)],
            trace: Some(trace),
        }
    }

    fn told(checks: &[Check], name: &str) -> [String; 3] {
        let check =
            checks.iter().find(|check| check.name == name).unwrap_or_else(|| panic!("{name}: {checks:#?}"));
        assert_eq!(check.state, CheckState::Told);
        [check.a.clone(), check.b.clone(), check.said.clone()]
    }

    #[test]
    fn each_figure_is_told_of_both() {
        let long = Long { tokens: 100, runs: vec![run(1.0, 10_240.0), run(0.5, 20_480.0)] };
        let found = checks(&long);
        assert_eq!(told(&found, "steady t/s"), ["10.0 t/s", "10.0 t/s", "1.000"]);
        assert_eq!(told(&found, "steady CPUs"), ["1.00 busy", "0.50 busy", "0.500"]);
        assert_eq!(told(&found, "busiest core")[0], "98 %");
        assert_eq!(told(&found, "steady GPU")[0], "90 % busy");
        assert_eq!(told(&found, "GPU memory, steady")[0], "10 GiB");
        assert_eq!(
            told(&found, "its SM clock")[0],
            "1902 MHz, lowest 1200, throttled by power for 50 % of the time"
        );
        assert_eq!(told(&found, "PCIe to GPU"), ["1 KiB/t", "2 KiB/t", "2.000, an estimate"]);
        assert_eq!(told(&found, "PCIe from GPU")[0], "102 B/t");
        // Nothing is shown unless both runs were monitored.
        assert_eq!(checks(&Long { tokens: 100, runs: vec![run(1.0, 1.0)] }), []);
        let long = Long { tokens: 100, runs: vec![run(1.0, 1.0), LongRun { trace: None, ..run(1.0, 1.0) }] };
        assert_eq!(checks(&long), []);
    }

    #[test]
    fn no_more_is_generated_than_the_model_was_trained_for() {
        use gguf::synth::{self, Preset, SynthOptions};
        let folder = tempfile::tempdir().unwrap();
        // The models have contexts of 4,096 and 512 tokens.
        for (preset, prompt, expected) in
            [(Preset::Tiny, 100, 1024), (Preset::Tiny, 4000, 95), (Preset::BertTiny, 600, 1)]
        {
            let path = folder.path().join(preset.name());
            synth::write(&path, &SynthOptions::new(preset)).unwrap();
            assert_eq!(tokens(&path, prompt), expected, "{prompt}");
        }
        assert_eq!(tokens(Path::new("/nowhere/m.gguf"), 100), 1024);
    }

    #[test]
    fn what_was_not_measured_is_said() {
        let with = |change: fn(&mut Trace)| {
            let mut b = run(1.0, 1.0);
            b.trace.as_mut().map(change);
            checks(&Long { tokens: 100, runs: vec![run(1.0, 1.0), b] })
        };
        let lost = with(|trace| trace.gpus[0].fault = Some("GPU is lost".to_string()));
        assert_eq!(told(&lost, "steady GPU")[2], "not measured for B: GPU is lost");
        let refused = with(|trace| trace.missing = Some("the driver hangs".to_string()));
        assert_eq!(told(&refused, "steady GPU")[2], "not measured for B: the driver hangs");
        let no_pcie = with(|trace| trace.gpus[0].pcie_fault = Some("Not Supported".to_string()));
        assert_eq!(told(&no_pcie, "PCIe")[2], "not measured: Not Supported");
        assert_eq!(told(&no_pcie, "steady GPU")[1], "90 % busy");
        // The GPU is throttled by heat in one of ten readings, and by power in two readings. Without PCIe traffic
        // from B, there is no ratio to estimate.
        let idle = with(|trace| {
            for (at, moment) in trace.moments.iter_mut().enumerate() {
                let gpu = &mut moment.gpus[0];
                gpu.pcie_received = None;
                gpu.throttling = Some([0x20, 4, 1][at.div_ceil(2).min(2)]);
            }
        });
        assert_eq!(told(&idle, "PCIe to GPU")[1..], ["not measured", ""]);
        let clocks = &told(&idle, "its SM clock")[1];
        assert!(
            clocks
                .ends_with("throttled by heat for 10 % of the time, throttled by power for 20 % of the time"),
            "{clocks}"
        );
        let no_clock = with(|trace| trace.moments.iter_mut().for_each(|moment| moment.gpus[0].sm_mhz = None));
        assert_eq!(told(&no_clock, "its SM clock")[1], "not measured");
    }
}
