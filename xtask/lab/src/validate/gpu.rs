//! GPU use in the timed laps. B must not fall back to the CPU, and must not let the GPU wait longer than A does.
//!
//! The driver's utilisation is the fraction of time in which a kernel ran. For the remaining time of each token, the
//! GPU waited for the host.

use build_info::BenchRow;
use measure::gpu::together;
use measure::{FEWEST_PAIRS, GpuUse, Ratio};
use serde::{Deserialize, Serialize};

use super::speed::{DISTURBED, Lap, Rules, Speed, half, most_memory};
use super::subject::About;
use super::verdict::{Check, CheckState};

/// Minimum utilisation at which a GPU is considered to work for the engine; a desktop uses less.
const GPU_AT_WORK: f64 = 0.1;

/// Placement of a model's layers, from the settings that `anneal bench` reports.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Placement {
    /// Number of layers on GPUs: 0 for none, negative for all.
    pub n_gpu_layers: i64,
    /// GPUs that may be used: `auto`, `none`, or names separated by slashes.
    pub devices: String,
    /// GPUs that the engine finds, as text; empty if it finds none.
    pub gpu_info: String,
    /// Distribution over the GPUs. With `layer`, the GPUs work one after the other; with `row` or `tensor`, they work
    /// at the same time; with `none`, only one GPU works.
    pub split_mode: String,
    /// Index of the single working GPU among the GPUs that may be used.
    pub main_gpu: usize,
}

impl Placement {
    /// Reads the placement from `row`. Returns `None` if the engine is too old to report the complete placement.
    pub fn of(row: &BenchRow) -> Option<Self> {
        Some(Self {
            n_gpu_layers: row.n_gpu_layers?,
            devices: row.devices.clone()?,
            gpu_info: row.gpu_info.clone()?,
            split_mode: row.split_mode.clone()?,
            main_gpu: row.main_gpu? as usize,
        })
    }

    /// True if at least one layer is on a GPU.
    pub fn is_on_gpu(&self) -> bool {
        self.n_gpu_layers != 0 && self.devices != "none" && !self.gpu_info.is_empty()
    }

    /// Returns the GPUs in `gpus` that may contain layers, or all GPUs if this cannot be determined.
    fn held<'a>(&self, gpus: &'a [GpuUse]) -> Vec<&'a GpuUse> {
        let number = |name: &str| name.to_ascii_uppercase().strip_prefix("CUDA")?.parse::<usize>().ok();
        let of = |number: usize| gpus.iter().find(|gpu| gpu.number == Some(number));
        let named: Option<Vec<&GpuUse>> = self.devices.split('/').map(|name| of(number(name)?)).collect();
        let held = named.unwrap_or_else(|| gpus.iter().collect());
        match held.get(self.main_gpu) {
            Some(main) if self.split_mode == "none" && are_numbered(gpus) => vec![main],
            _ => held,
        }
    }
}

/// True if CUDA's numbering of several GPUs is known.
fn are_numbered(gpus: &[GpuUse]) -> bool {
    gpus.len() < 2 || gpus.iter().all(|gpu| gpu.number.is_some())
}

/// Returns the checks of GPU use in all phases. `driver` is true if the NVIDIA driver is loaded.
pub fn checks(speeds: &[Speed], subjects: &[About], driver: bool, rules: &Rules) -> Vec<Check> {
    let computes = [0, 1].map(|side| computes(speeds, subjects, side));
    if !driver && computes[0] && !speeds.is_empty() {
        // A may use GPUs of another vendor, whose driver is not queried.
        let said = "not measured: no NVIDIA driver is loaded";
        return vec![Check::new("GPU use", CheckState::Told, said.to_string())];
    }
    let mut checks: Vec<Check> = speeds.iter().filter_map(|speed| used(speed, rules, computes)).collect();
    checks.extend(most_memory("GPU memory", speeds, memory));
    if computes.contains(&true) {
        checks.extend(unnumbered(speeds));
    }
    if computes[0] {
        checks.extend(speeds.iter().filter_map(idle));
    }
    checks
}

/// Returns a remark if the counted GPUs may include GPUs that only other processes use.
fn unnumbered(speeds: &[Speed]) -> Option<Check> {
    let mut laps = speeds.iter().flat_map(|speed| speed.laps.iter().flatten());
    laps.any(|lap| !are_numbered(&lap.usage.gpus)).then(|| {
        let said = "the use of all GPUs counts, because CUDA's numbering is unknown: the GPUs differ, or MIG \
                    has partitioned them; set CUDA_DEVICE_ORDER=PCI_BUS_ID";
        Check::new("GPUs", CheckState::Told, said.to_string())
    })
}

/// True if a side has layers on a GPU. Finding a GPU is not enough: the engine may leave the GPU idle, so that the
/// GPU's utilisation comes from other processes. An engine that is too old to report its placement is assumed to use
/// every GPU.
pub fn computes(speeds: &[Speed], subjects: &[About], side: usize) -> bool {
    let laps = || speeds.iter().flat_map(|speed| &speed.laps[side]);
    let mut told = laps().filter_map(|lap| lap.placement.as_ref()).peekable();
    match told.peek() {
        Some(_) => told.any(Placement::is_on_gpu),
        None => subjects.get(side).is_some_and(has_gpu),
    }
}

/// True if an engine finds a GPU. An older engine that is linked for GPUs does not report GPUs, but may find one.
fn has_gpu(about: &About) -> bool {
    about.gpus.as_ref().is_none_or(|gpus| !gpus.is_empty())
}

/// Returns the GPUs that may have contained layers during `lap`.
fn held(lap: &Lap) -> Vec<GpuUse> {
    let gpus = &lap.usage.gpus;
    let held = lap.placement.as_ref().map(|placement| placement.held(gpus));
    held.map_or_else(|| gpus.clone(), |held| held.into_iter().cloned().collect())
}

/// Returns the combined utilisation, power and clock of a lap's GPUs. If layers are distributed, the GPUs work one
/// after the other, so their utilisations are added. Otherwise the busiest GPU counts. Returns `None` if a GPU was
/// lost during the lap.
fn lap(lap: &Lap) -> Option<GpuUse> {
    let gpus = held(lap);
    let all = together(&gpus).filter(|all| all.fault.is_none())?;
    let by_layer = lap.placement.as_ref().is_some_and(|placement| placement.split_mode == "layer");
    let sum = || gpus.iter().filter_map(|gpu| gpu.utilisation).sum::<f64>().min(1.0);
    let utilisation = all.utilisation.map(|busiest| if by_layer { sum() } else { busiest });
    Some(GpuUse { utilisation, ..all })
}

/// Returns the reason why a GPU stopped reporting during a lap.
fn fault(lap: &Lap) -> Option<String> {
    held(lap).into_iter().find_map(|gpu| gpu.fault)
}

fn of(speed: &Speed, side: usize, pick: impl Fn(&Lap, &GpuUse) -> Option<f64>) -> Option<f64> {
    speed.median(side, |of| pick(of, &lap(of)?))
}

/// Returns the peak of the GPU memory used by all processes during a side's runs.
fn memory(speed: &Speed, side: usize) -> Option<u64> {
    speed.laps[side].iter().filter_map(|lap| together(&held(lap))?.memory_peak).max()
}

/// Returns B's utilisation divided by A's, paired by round.
fn ratio(speed: &Speed) -> Option<Ratio> {
    let busy = |of: &Lap| lap(of)?.utilisation;
    let pairs = speed.laps[0].iter().zip(&speed.laps[1]).filter_map(|(a, b)| busy(a).zip(busy(b)));
    let (a, b): (Vec<f64>, Vec<f64>) = pairs.filter(|(a, _)| *a > 0.0).unzip();
    (a.len() >= FEWEST_PAIRS).then(|| measure::ratio(&b, &a))
}

/// Checks the utilisation of the GPUs, and shows their power and clock. `computes` is true for each side with layers
/// on a GPU. If the utilisation is required but unknown, the check reports this.
fn used(speed: &Speed, rules: &Rules, computes: [bool; 2]) -> Option<Check> {
    let name = format!("GPU, {}", speed.phase);
    let show = |side: usize| {
        let parts = [
            of(speed, side, |_, gpu| gpu.utilisation).map(|share| format!("{:.0} %", 100.0 * share)),
            of(speed, side, |_, gpu| gpu.watts).map(|watts| format!("{watts:.0} W")),
            of(speed, side, |_, gpu| gpu.sm_mhz).map(|mhz| format!("{mhz:.0} MHz")),
        ];
        parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
    };
    let busy = |side: usize| of(speed, side, |_, gpu| gpu.utilisation);
    let check = |state, said: String| Check::new(&*name, state, said).with(show(0), show(1));
    let [of_a, of_b] = computes;
    if !of_a {
        // A does not use a GPU, so any utilisation with A comes from other processes.
        return busy(0).or(busy(1)).map(|_| check(CheckState::Told, "A uses no GPU".to_string()));
    }
    if !of_b {
        let reason = format!("B runs all layers on the CPU in {}, but A runs some on a GPU", speed.phase);
        return Some(check(CheckState::Failed, "CPU fallback".to_string()).because(reason));
    }
    let Some((a, b)) = busy(0).zip(busy(1)) else { return Some(not_measured(check, speed, rules)) };
    if a >= GPU_AT_WORK && b < a / 10.0 {
        return Some(check(CheckState::Failed, "CPU fallback".to_string()).because(format!(
            "B falls back to the CPU in {}: the GPU is {:.0} % busy with B, but {:.0} % busy with A",
            speed.phase,
            100.0 * b,
            100.0 * a
        )));
    }
    // If a GPU is lost in the last lap, its earlier readings are incomplete.
    if speed.laps.iter().flatten().any(|lap| fault(lap).is_some()) {
        return Some(not_measured(check, speed, rules));
    }
    if a < GPU_AT_WORK {
        return Some(check(CheckState::Told, String::new()));
    }
    let Some(ratio) = ratio(speed) else { return Some(not_measured(check, speed, rules)) };
    let (state, word) = judge(&ratio, 1.0 - rules.gpu_tolerance);
    let check = check(state, format!("{ratio} {word}"));
    let idle = idle(speed)
        .map_or(String::new(), |idle| format!("; GPU idle time: {} (A) and {} (B)", idle.a, idle.b));
    Some(match state {
        CheckState::Failed => {
            check.because(format!("B keeps the GPU less busy in {}: {ratio}{idle}", speed.phase))
        }
        CheckState::Unclear => check.because(format!(
            "GPU use in {} was measured too imprecisely: {ratio}; measure more rounds (raise --pairs, or run \
             all pairs with --precision 0)",
            speed.phase
        )),
        _ => check,
    })
}

/// Judges a ratio of utilisations. As with CPU time, a wide interval does not pass.
fn judge(ratio: &Ratio, least: f64) -> (CheckState, &'static str) {
    if ratio.high < least {
        (CheckState::Failed, "less busy")
    } else if ratio.low < least && half(ratio) > 2.0 * DISTURBED {
        (CheckState::Unclear, "disturbed")
    } else if ratio.median < least {
        (CheckState::Unclear, "possibly less")
    } else if ratio.low > 1.0 {
        (CheckState::Passed, "busier")
    } else {
        (CheckState::Passed, "not less")
    }
}

/// Returns the check for a missing measurement. With a tolerance of 1 or more, low GPU use cannot fail the check, so
/// the measurement is not needed.
fn not_measured(check: impl Fn(CheckState, String) -> Check, speed: &Speed, rules: &Rules) -> Check {
    let mut laps = speed.laps.iter().flatten();
    let why = match laps.clone().find_map(fault) {
        Some(fault) => fault,
        None if laps.any(|lap| lap.usage.gpus.is_empty()) => {
            "the driver does not respond or reports no GPU (`cargo xtask doctor` shows the reason)"
                .to_string()
        }
        None => {
            "the driver does not report the GPU's utilisation, or does so in too few rounds of more than a \
             second"
                .to_string()
        }
    };
    let why = format!("not measured: {why}");
    if rules.gpu_tolerance >= 1.0 {
        return check(CheckState::Told, why);
    }
    let reason = format!(
        "GPU use in {} is {why}; with --gpu-tolerance 1, validate does not need this measurement",
        speed.phase
    );
    check(CheckState::Unclear, "not measured".to_string()).because(reason)
}

/// Returns the check that shows how long the GPU waits per token.
fn idle(speed: &Speed) -> Option<Check> {
    let milliseconds = |side: usize| {
        of(speed, side, |lap, gpu| {
            gpu.utilisation.map(|busy| 1e3 * (1.0 - busy) / lap.tokens_per_second.max(f64::MIN_POSITIVE))
        })
    };
    let share = |side: usize| of(speed, side, |_, gpu| gpu.utilisation.map(|busy| 100.0 * (1.0 - busy)));
    let show = |side: usize| Some(format!("{:.3} ms/t, {:.0} %", milliseconds(side)?, share(side)?));
    let (a, b) = milliseconds(0).zip(milliseconds(1))?;
    let said = if a > 0.0 { format!("{:.3}", b / a) } else { String::new() };
    Some(Check::new(format!("GPU idle, {}", speed.phase), CheckState::Told, said).with(show(0)?, show(1)?))
}

#[cfg(test)]
mod tests {
    use build::compare::Phase;
    use build::compare::comparison::Contender;
    use measure::Usage;

    use super::*;

    fn about(gpus: &[&str]) -> About {
        let gpus = Some(gpus.iter().map(|gpu| gpu.to_string()).collect());
        About { build: Contender::new("x", None), flags: Vec::new(), gpus }
    }

    fn rules(gpu_tolerance: f64) -> Rules {
        Rules { decisive: Vec::new(), accept_equal: false, cpu_tolerance: 0.02, gpu_tolerance }
    }

    /// Returns twenty rounds at 100 t/s with these utilisations of A and B; `None` means that the driver does not
    /// report the utilisation.
    fn speed(a: Option<f64>, b: Option<f64>, noise: f64, fault: Option<&str>) -> Speed {
        let mut speed = Speed::new(Phase::Decode, 128, 1);
        for round in 0..20 {
            for (side, busy) in [(0, a), (1, b)] {
                let off = noise * [0.0, 1.0, -1.0, 2.0, -2.0][(round + 2 * side) % 5];
                let gpu = GpuUse {
                    utilisation: busy.map(|busy| busy * (1.0 + off)),
                    memory_peak: Some(4 << 30),
                    watts: Some(412.0),
                    sm_mhz: Some(1980.0),
                    fault: fault.map(str::to_string),
                    ..GpuUse::default()
                };
                let usage = Usage { gpus: vec![gpu], ..Usage::default() };
                speed.laps[side].push(Lap {
                    tokens_per_second: 100.0,
                    cpu_seconds: None,
                    token_times: None,
                    placement: None,
                    usage,
                });
            }
        }
        speed
    }

    fn named<'a>(checks: &'a [Check], name: &str) -> Option<&'a Check> {
        checks.iter().find(|check| check.name == name)
    }

    #[test]
    fn b_must_not_let_the_gpu_wait_more() {
        use CheckState::{Failed, Passed, Told, Unclear};
        let cases = [
            // Utilisation with A, utilisation with B, noise, tolerance.
            (0.87, 0.90, 0.0, 0.02, Passed, "busier"),
            (0.87, 0.87, 0.005, 0.02, Passed, "not less"),
            (0.87, 0.86, 0.0, 0.02, Passed, "not less"),
            (0.87, 0.80, 0.005, 0.02, Failed, "less busy"),
            (0.87, 0.80, 0.005, 0.10, Passed, "not less"),
            (0.87, 0.84, 0.02, 0.02, Unclear, "possibly less"),
            (0.87, 0.87, 0.2, 0.02, Unclear, "disturbed"),
            // With any tolerance, a fallback to the CPU is reported.
            (0.87, 0.0, 0.0, 1.0, Failed, "CPU fallback"),
            (0.02, 0.0, 0.0, 0.02, Told, ""),
            (0.0, 0.9, 0.0, 0.02, Told, ""),
        ];
        for (a, b, noise, tolerance, state, word) in cases {
            let found = checks(
                &[speed(Some(a), Some(b), noise, None)],
                &[about(&["H100"]), about(&["H100"])],
                true,
                &rules(tolerance),
            );
            let check = named(&found, "GPU, decode").unwrap();
            assert_eq!(check.state, state, "{a} {b} {noise}: {check:?}");
            assert!(check.said.ends_with(word), "{check:?}");
            assert_eq!(check.reason.is_some(), [Failed, Unclear].contains(&state), "{check:?}");
        }
        let found = checks(
            &[speed(Some(0.87), Some(0.80), 0.0, None)],
            &[about(&["H100"]), about(&["H100"])],
            true,
            &rules(0.02),
        );
        let check = named(&found, "GPU, decode").unwrap();
        assert_eq!((check.a.as_str(), check.b.as_str()), ("87 %, 412 W, 1980 MHz", "80 %, 412 W, 1980 MHz"));
        let reason = check.reason.as_ref().unwrap();
        assert!(
            reason.contains("0.920") && reason.contains("1.300 ms/t, 13 % (A) and 2.000 ms/t, 20 % (B)"),
            "{reason}"
        );
        let told = named(&found, "GPU idle, decode").unwrap();
        assert_eq!((told.state, told.said.as_str()), (Told, "1.538"));
        assert_eq!(named(&found, "GPU memory").unwrap().a, "4 GiB");
    }

    #[test]
    fn what_was_not_measured_is_said_with_its_reason_and_does_not_pass() {
        let lost = "cannot read the state of GPU 0: GPU is lost";
        let none = || {
            let mut speed = speed(Some(0.9), None, 0.0, None);
            speed.laps[1].iter_mut().for_each(|lap| lap.usage.gpus.clear());
            speed
        };
        let cases = [
            (speed(None, None, 0.0, None), "does not report the GPU's utilisation"),
            (speed(Some(0.9), None, 0.0, None), "does not report the GPU's utilisation"),
            (speed(Some(0.9), Some(0.9), 0.0, Some(lost)), "GPU is lost"),
            (none(), "reports no GPU"),
        ];
        for (speed, why) in cases {
            let speeds = [speed];
            let found = checks(&speeds, &[about(&["H100"]), about(&["H100"])], true, &rules(0.02));
            let check = named(&found, "GPU, decode").unwrap();
            assert_eq!(
                (check.state, check.said.as_str()),
                (CheckState::Unclear, "not measured"),
                "{check:?}"
            );
            assert!(check.reason.as_ref().unwrap().contains(why), "{check:?}");
            // With a tolerance of 1, the result is reported and the validation continues.
            let found = checks(&speeds, &[about(&["H100"]), about(&["H100"])], true, &rules(1.0));
            let check = named(&found, "GPU, decode").unwrap();
            assert!(check.state == CheckState::Told && check.said.contains(why), "{check:?}");
        }
    }

    /// Returns the placement that `anneal bench` reports for this number of layers on these devices.
    fn placement(n_gpu_layers: i64, devices: &str, gpu_info: &str) -> Option<Placement> {
        let (devices, gpu_info) = (devices.to_string(), gpu_info.to_string());
        Some(Placement { n_gpu_layers, devices, gpu_info, split_mode: "layer".to_string(), main_gpu: 0 })
    }

    #[test]
    fn a_card_that_is_busy_for_others_is_not_judged() {
        use CheckState::{Failed, Passed, Told};
        let (auto, cpu) = (|| placement(-1, "auto", "H100"), || placement(0, "auto", "H100"));
        let cases = [
            // Placement of A, placement of B, true if A's engine finds a GPU, and the expected check.
            (None, None, false, Told, "A uses no GPU"),
            (cpu(), cpu(), true, Told, "A uses no GPU"),
            (cpu(), auto(), true, Told, "A uses no GPU"),
            (placement(-1, "none", "H100"), auto(), true, Told, "A uses no GPU"),
            (placement(-1, "auto", ""), auto(), false, Told, "A uses no GPU"),
            (auto(), auto(), true, Failed, "less busy"),
            (auto(), cpu(), true, Failed, "CPU fallback"),
            (placement(7, "CUDA0", "H100"), None, true, Failed, "less busy"),
        ];
        for (a, b, finds, state, word) in cases {
            // Another process keeps the GPU half busy, and less busy while B runs.
            let mut speed = speed(Some(0.5), Some(0.3), 0.0, None);
            for (side, placement) in [&a, &b].into_iter().enumerate() {
                speed.laps[side].iter_mut().for_each(|lap| lap.placement = placement.clone());
            }
            let subjects = [about(if finds { &["H100"] } else { &[] }), about(&["H100"])];
            let found = checks(&[speed.clone()], &subjects, true, &rules(0.02));
            let check = named(&found, "GPU, decode").unwrap();
            assert_eq!(check.state, state, "{a:?} {b:?}: {check:?}");
            assert!(check.said.ends_with(word), "{check:?}");
            // If the engine does not report its placement, the utilisation shows that B uses the GPU.
            speed.laps[1].iter_mut().for_each(|lap| lap.usage.gpus[0].utilisation = Some(0.5));
            let found = checks(&[speed], &subjects, true, &rules(0.02));
            let passed = named(&found, "GPU, decode").unwrap().state == Passed;
            assert_eq!(passed, word == "less busy", "{a:?} {b:?}");
        }
    }

    #[test]
    fn cards_that_share_layers_work_one_after_the_other() {
        let gpu = |(number, busy): (usize, f64)| GpuUse {
            number: Some(number),
            utilisation: Some(busy),
            watts: Some(100.0),
            ..GpuUse::default()
        };
        let gpus = |busy: [f64; 3]| busy.into_iter().enumerate().map(gpu).collect::<Vec<_>>();
        let cases = [
            // Devices, distribution, main GPU, combined utilisation, watts.
            ("auto", "layer", 0, 0.9, 300.0),
            ("CUDA0/CUDA2", "layer", 0, 0.6, 200.0),
            ("cuda2", "layer", 0, 0.2, 100.0),
            ("auto", "row", 0, 0.4, 300.0),
            ("auto", "none", 1, 0.3, 100.0),
            // If CUDA's names do not identify a device, all GPUs count.
            ("Vulkan0", "layer", 0, 0.9, 300.0),
            ("CUDA7", "row", 0, 0.4, 300.0),
        ];
        for (devices, split_mode, main_gpu, busy, watts) in cases {
            let mut speed = speed(None, None, 0.0, None);
            let of = &mut speed.laps[0][0];
            of.usage.gpus = gpus([0.4, 0.3, 0.2]);
            let split_mode = split_mode.to_string();
            of.placement = placement(-1, devices, "H100").map(|placement| Placement {
                split_mode,
                main_gpu,
                ..placement
            });
            let found = lap(of).unwrap();
            assert!((found.utilisation.unwrap() - busy).abs() < 1e-9, "{devices} {found:?}");
            assert_eq!(found.watts, Some(watts), "{devices}");
            // In prefill, several GPUs are busy at once, and the sum is limited to 1.
            of.usage.gpus = gpus([0.9; 3]);
            assert!(lap(of).unwrap().utilisation.unwrap() <= 1.0);
        }
    }

    #[test]
    fn of_cards_without_cudas_number_all_count_and_that_is_said() {
        let subjects = [about(&["H100", "T4"]), about(&["H100", "T4"])];
        // Devices, distribution, and the combined utilisation with and without numbers.
        let cases = [("CUDA1", "none", 0.3, 0.9), ("CUDA1", "layer", 0.3, 1.0), ("auto", "none", 0.9, 0.9)];
        for (devices, split_mode, with, without) in cases {
            // The first list is in CUDA's order, the second in the driver's.
            let told = [([(Some(0), 0.9), (Some(1), 0.3)], with), ([(None, 0.3), (None, 0.9)], without)];
            for (cards, busy) in told {
                let gpu = |(number, busy)| GpuUse { number, utilisation: Some(busy), ..GpuUse::default() };
                let mut speed = speed(None, None, 0.0, None);
                for of in speed.laps.iter_mut().flatten() {
                    of.usage.gpus = cards.into_iter().map(gpu).collect();
                    of.placement = placement(-1, devices, "H100, T4")
                        .map(|placement| Placement { split_mode: split_mode.to_string(), ..placement });
                }
                let found = lap(&speed.laps[0][0]).unwrap();
                assert_eq!(found.utilisation, Some(busy), "{devices} {split_mode} {cards:?}");
                let found = checks(&[speed], &subjects, true, &rules(0.02));
                let told = named(&found, "GPUs");
                assert_eq!(told.is_some(), cards[0].0.is_none(), "{found:?}");
                assert!(
                    told.is_none_or(|told| told.state == CheckState::Told && told.said.contains("PCI_BUS_ID"))
                );
            }
        }
    }

    #[test]
    fn a_card_that_is_lost_late_is_told_of() {
        let mut speed = speed(Some(0.9), Some(0.9), 0.0, None);
        for (lap, tolerance, state) in [(12, 0.02, CheckState::Unclear), (19, 1.0, CheckState::Told)] {
            let gpu = &mut speed.laps[1][lap].usage.gpus[0];
            gpu.fault = Some("cannot read the state of GPU 0: GPU is lost".to_string());
            let found = checks(
                std::slice::from_ref(&speed),
                &[about(&["H100"]), about(&["H100"])],
                true,
                &rules(tolerance),
            );
            let check = named(&found, "GPU, decode").unwrap();
            assert_eq!(check.state, state, "{check:?}");
            assert!(check.reason.as_ref().unwrap_or(&check.said).contains("GPU is lost"), "{check:?}");
        }
    }

    #[test]
    fn without_a_gpu_or_its_driver_nothing_is_judged() {
        let mut speed = speed(None, None, 0.0, None);
        speed.laps.iter_mut().flatten().for_each(|lap| lap.usage.gpus.clear());
        let speeds = [speed];
        for driver in [false, true] {
            assert_eq!(checks(&speeds, &[about(&[]), about(&["H100"])], driver, &rules(0.02)), []);
        }
        let found = checks(&speeds, &[about(&["Radeon"])], false, &rules(0.02));
        assert_eq!((found.len(), found[0].state), (1, CheckState::Told));
        assert!(found[0].said.starts_with("not measured: no NVIDIA driver"));
        assert_eq!(checks(&[], &[about(&["Radeon"])], false, &rules(0.02)), []);
    }
}
