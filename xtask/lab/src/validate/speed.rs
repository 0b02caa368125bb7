//! Speed and CPU time of each phase: the measurements, and the criteria for acceptance.

use build::compare::Phase;
use measure::race::Finish;
use measure::{Ratio, Round, Stop, Usage, median};
use serde::{Deserialize, Serialize};

use super::gpu::Placement;
use super::verdict::{Check, CheckState};

/// Noise above which the machine is too disturbed for the verdict "no difference".
pub(crate) const DISTURBED: f64 = 0.05;

/// Criteria for acceptance.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Phases in which B must be faster. If empty, B must be faster in at least one phase and slower in none.
    pub decisive: Vec<Phase>,
    /// True if a B that is as fast as A is also accepted.
    pub accept_equal: bool,
    /// Maximum additional CPU time per token of B, as a fraction of A's.
    pub cpu_tolerance: f64,
    /// Maximum reduction in B's GPU use, as a fraction of A's; if 1 or more, only a fallback to the CPU fails.
    pub gpu_tolerance: f64,
}

/// Run of one engine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Lap {
    /// Mean tokens per second of the run's repetitions.
    pub tokens_per_second: f64,
    /// CPU seconds (user and system) per thousand tokens. `None` if the kernel does not report CPU time, or the run
    /// was too short.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_seconds: Option<f64>,
    /// Times between tokens; `None` for prefill.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_times: Option<TokenTimes>,
    /// Placement of the model's layers; `None` if the engine is too old to report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
    /// Resources used during the phase, including the warm-up.
    pub usage: Usage,
}

/// Time from one token to the next, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenTimes {
    /// Median in nanoseconds.
    pub p50: f64,
    /// 95th percentile in nanoseconds.
    pub p95: f64,
    /// 99th percentile in nanoseconds.
    pub p99: f64,
    /// Standard deviation in nanoseconds.
    pub deviation: f64,
}

/// Measurements of one phase.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Speed {
    /// Phase that was measured.
    pub phase: Phase,
    /// Number of tokens of one repetition.
    pub tokens: u32,
    /// Number of repetitions in a sample.
    pub repetitions: u32,
    /// Reason why the phase ended; `None` if it was interrupted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop: Option<Stop>,
    /// B's speed divided by A's.
    pub ratio: Option<Ratio>,
    /// B's CPU time per token divided by A's.
    pub cpu_ratio: Option<Ratio>,
    /// Smallest difference in speed that the measurement can be expected to detect.
    pub floor: Option<f64>,
    /// Smallest difference in CPU time that the measurement can be expected to detect.
    pub cpu_floor: Option<f64>,
    /// Laps of A and B that count.
    pub laps: [Vec<Lap>; 2],
    /// Laps that do not count: the laps of the first round, and of rounds in which A was disturbed.
    pub dropped: [Vec<Lap>; 2],
    /// Load from other processes in the rounds that count.
    pub rounds: Vec<Round>,
}

impl Speed {
    pub(super) fn new(phase: Phase, tokens: u32, repetitions: u32) -> Self {
        Self {
            phase,
            tokens,
            repetitions,
            stop: None,
            ratio: None,
            cpu_ratio: None,
            floor: None,
            cpu_floor: None,
            laps: [Vec::new(), Vec::new()],
            dropped: [Vec::new(), Vec::new()],
            rounds: Vec::new(),
        }
    }

    /// Separates the laps that count from those that do not, and computes the ratios.
    pub(super) fn sort_out(&mut self, finish: Finish) {
        let [a, b] = std::mem::take(&mut self.laps);
        for (a, b) in a.into_iter().zip(b) {
            let next = self.laps[0].len();
            let counted =
                |side: usize, lap: &Lap| finish.samples[side].get(next) == Some(&lap.tokens_per_second);
            let warm_up = self.dropped[0].is_empty();
            let to =
                if !warm_up && counted(0, &a) && counted(1, &b) { &mut self.laps } else { &mut self.dropped };
            to[0].push(a);
            to[1].push(b);
        }
        self.floor = measure::floor(&finish.samples[0], finish.samples[0].len());
        self.ratio = Some(finish.ratio(1));
        self.stop = Some(finish.stop);
        self.rounds = finish.rounds;
        let cpu: Vec<(f64, f64)> = self.laps[0]
            .iter()
            .zip(&self.laps[1])
            .filter_map(|(a, b)| a.cpu_seconds.zip(b.cpu_seconds))
            .collect();
        if !cpu.is_empty() {
            let (a, b): (Vec<f64>, Vec<f64>) = cpu.into_iter().unzip();
            self.cpu_ratio = Some(measure::ratio(&b, &a));
            self.cpu_floor = measure::floor(&a, a.len());
        }
    }

    pub(super) fn median(&self, side: usize, value: impl Fn(&Lap) -> Option<f64>) -> Option<f64> {
        let values: Vec<f64> = self.laps[side].iter().filter_map(value).collect();
        (!values.is_empty()).then(|| median(&values))
    }

    fn side(&self) -> &'static str {
        self.ratio.map_or("too few pairs", |ratio| ratio.verdict())
    }

    /// True if the noise is so high that "no difference" is not meaningful.
    fn is_disturbed(&self) -> bool {
        let wide = self.ratio.is_some_and(|ratio| half(&ratio) > DISTURBED);
        wide || self.side() == "too few pairs" || self.floor.is_none_or(|floor| floor > DISTURBED)
    }

    /// Checks the speed.
    fn fast(&self, rules: &Rules) -> Check {
        let show = |side: usize| {
            self.median(side, |lap| Some(lap.tokens_per_second))
                .map_or(String::new(), |speed| self.phase.show(speed))
        };
        let figure = self.ratio.map_or(String::new(), |ratio| ratio.to_string());
        let check = |state, word: &str| {
            Check::new(self.phase.name(), state, format!("{figure} {word}")).with(show(0), show(1))
        };
        let must = rules.decisive.contains(&self.phase) && !rules.accept_equal;
        match self.side() {
            "higher" => check(CheckState::Passed, "faster"),
            "lower" => {
                check(CheckState::Failed, "slower").because(format!("{} is slower: {figure}", self.phase))
            }
            "equal" if must => {
                check(CheckState::Failed, "equal").because(format!("{} is not faster: {figure}", self.phase))
            }
            "equal" => check(CheckState::Told, "equal"),
            _ if self.is_disturbed() => check(CheckState::Unclear, "disturbed").because(self.disturbance()),
            _ if must => check(CheckState::Failed, "no difference")
                .because(format!("{} shows no difference: {figure}", self.phase)),
            _ => check(CheckState::Told, "no difference"),
        }
    }

    fn disturbance(&self) -> String {
        match (self.floor, self.ratio) {
            (Some(floor), _) if floor > DISTURBED => format!(
                "the machine was too disturbed to measure {}: differences below {:.0} % would not show",
                self.phase,
                100.0 * floor
            ),
            // A was steady, so the noise comes from B or occurred only while B ran.
            (Some(_), Some(ratio)) if half(&ratio) > DISTURBED => format!(
                "B was too unsteady to measure {}: its speed is known only to within {:.0} % ({ratio})",
                self.phase,
                100.0 * half(&ratio)
            ),
            _ => format!("there are too few pairs for a verdict on {}", self.phase),
        }
    }

    /// Checks the CPU time per token. The check fails if B is shown to use more than the tolerance allows. If B
    /// probably uses more, but the interval reaches below the limit, the result is unclear. Otherwise a wide interval
    /// would always pass.
    fn cheap(&self, rules: &Rules) -> Check {
        let name = format!("CPU, {}", self.phase);
        let show = |side: usize| {
            self.median(side, |lap| lap.cpu_seconds).map_or(String::new(), |cpu| format!("{:.3} ms/t", cpu))
        };
        let Some(ratio) = self.cpu_ratio.filter(|ratio| ratio.pairs >= measure::FEWEST_PAIRS) else {
            return Check::new(name, CheckState::Unclear, "too short for a verdict".to_string()).because(
                format!(
                    "the CPU time of {} was too short to measure: use a larger -p or -n, or a larger model",
                    self.phase
                ),
            );
        };
        let check =
            |state, word: &str| Check::new(&*name, state, format!("{ratio} {word}")).with(show(0), show(1));
        let most = 1.0 + rules.cpu_tolerance;
        if ratio.low > most {
            check(CheckState::Failed, "more")
                .because(format!("{} takes more CPU time per token: {ratio}", self.phase))
        } else if ratio.high > most
            && (half(&ratio) > 2.0 * DISTURBED || self.cpu_floor.is_none_or(|floor| floor > 2.0 * DISTURBED))
        {
            check(CheckState::Unclear, "disturbed")
                .because(format!("the machine was too disturbed to measure the CPU time of {}", self.phase))
        } else if ratio.median > most {
            check(CheckState::Unclear, "possibly more").because(format!(
                "{} probably takes more CPU time per token than allowed, but there are too few rounds for a \
                 verdict: {ratio}; measure more rounds (raise --pairs, or run all pairs with --precision 0)",
                self.phase
            ))
        } else if ratio.high < 1.0 {
            check(CheckState::Passed, "less")
        } else {
            check(CheckState::Passed, "not more")
        }
    }

    /// Shows the times between tokens, as reported by the engine. Rare long waits appear in the slowest times.
    fn latency(&self) -> Option<Check> {
        let milliseconds = |side: usize, pick: fn(&TokenTimes) -> f64| {
            self.median(side, |lap| lap.token_times.as_ref().map(|times| pick(times) / 1e6))
        };
        let p99 = |side: usize| milliseconds(side, |times| times.p99);
        let show = |side: usize| {
            Some(format!("p50 {:.2}, p99 {:.2} ms", milliseconds(side, |times| times.p50)?, p99(side)?))
        };
        let (a, b) = p99(0).zip(p99(1))?;
        let said = if a > 0.0 { format!("{:.3} at p99", b / a) } else { String::new() };
        Some(Check::new(format!("token, {}", self.phase), CheckState::Told, said).with(show(0)?, show(1)?))
    }

    /// Returns the peak memory of a side's runs.
    fn peak(&self, side: usize) -> Option<u64> {
        self.laps[side].iter().filter_map(|lap| lap.usage.peak_memory).max()
    }
}

/// Returns half the width of the interval, which is the precision of the ratio.
pub(super) fn half(ratio: &Ratio) -> f64 {
    (ratio.high - ratio.low) / 2.0
}

/// Returns the checks of all phases.
pub fn checks(speeds: &[Speed], rules: &Rules) -> Vec<Check> {
    let mut checks: Vec<Check> = speeds.iter().map(|speed| speed.fast(rules)).collect();
    if let Some(check) = none_faster(&checks, rules) {
        checks.push(check);
    }
    checks.extend(speeds.iter().filter_map(Speed::latency));
    checks.extend(speeds.iter().map(|speed| speed.cheap(rules)));
    checks.extend(most_memory("peak memory", speeds, Speed::peak));
    checks
}

/// Shows the maximum of `of` over all phases for each side, in bytes.
pub(super) fn most_memory(
    name: &str,
    speeds: &[Speed],
    of: impl Fn(&Speed, usize) -> Option<u64>,
) -> Option<Check> {
    let most = |side: usize| speeds.iter().filter_map(|speed| of(speed, side)).max();
    let (a, b) = most(0).zip(most(1))?;
    let show = |bytes: u64| build_info::Bytes(bytes).to_string();
    let said = format!("{:.3}", b as f64 / a.max(1) as f64);
    Some(Check::new(name, CheckState::Told, said).with(show(a), show(b)))
}

/// Checks that at least one phase is faster, if no phase is decisive.
fn none_faster(checks: &[Check], rules: &Rules) -> Option<Check> {
    let settled = checks.iter().any(|check| check.state != CheckState::Told);
    if rules.accept_equal || !rules.decisive.is_empty() || settled || checks.is_empty() {
        return None;
    }
    let figures: Vec<String> = checks.iter().map(|check| format!("{} {}", check.name, check.said)).collect();
    let reason = format!("no phase is faster: {}", figures.join("; "));
    Some(Check::new("faster", CheckState::Failed, "none".to_string()).because(reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns pairs in which B is `factor` times as fast and uses `cpu` times the CPU time, with some noise.
    fn speed(phase: Phase, factor: f64, cpu: f64, noise: f64) -> Speed {
        speed_of(phase, factor, cpu, [noise; 2])
    }

    /// Returns pairs as [`speed`] does, with separate noise for each side.
    fn speed_of(phase: Phase, factor: f64, cpu: f64, noise: [f64; 2]) -> Speed {
        let mut speed = Speed::new(phase, 64, 1);
        // Neither side is ahead: of five ratios, three are slightly above 1, and two are further below 1.
        let steps = [[0.0, 1.0, -1.0, 2.0, -2.0], [2.0, -2.0, 1.0, -1.0, 0.0]];
        let wave = |side: usize, round: usize| 1.0 + noise[side] * steps[side][round % 5];
        let mut samples = vec![Vec::new(), Vec::new()];
        for round in 0..21 {
            for (side, factor, cpu) in [(0, 1.0, 1.0), (1, factor, cpu)] {
                let value = 100.0 * factor * wave(side, round) + if round == 0 { 50.0 } else { 0.0 };
                let cpu_seconds = Some(20.0 * cpu * wave(side, round));
                let usage = Usage::default();
                speed.laps[side].push(Lap {
                    tokens_per_second: value,
                    cpu_seconds,
                    token_times: None,
                    placement: None,
                    usage,
                });
                if round > 0 {
                    samples[side].push(value);
                }
            }
        }
        let rounds = Vec::new();
        speed.sort_out(Finish {
            stop: Stop::Pairs,
            samples,
            rounds,
            dropped: Vec::new(),
            new_levels: Vec::new(),
        });
        assert_eq!((speed.laps[0].len(), speed.dropped[0].len()), (20, 1));
        speed
    }

    fn rules(decisive: &[Phase], accept_equal: bool) -> Rules {
        Rules { decisive: decisive.to_vec(), accept_equal, cpu_tolerance: 0.02, gpu_tolerance: 0.02 }
    }

    #[test]
    fn faster_somewhere_and_slower_nowhere_is_accepted() {
        use crate::validate::verdict::Verdict::{Accepted, CannotTell, NotAccepted};
        let cases = [
            // Prefill, decode, CPU time of decode, noise, decisive phases, true if equal speed is accepted.
            (1.1, 1.1, 1.0, 0.002, &[][..], false, Accepted),
            (1.1, 1.0, 1.0, 0.002, &[], false, Accepted),
            (1.1, 0.95, 1.0, 0.002, &[], false, NotAccepted),
            (1.0, 1.0, 1.0, 0.002, &[], false, NotAccepted),
            (1.0, 1.0, 1.0, 0.002, &[], true, Accepted),
            (1.1, 1.0, 1.0, 0.002, &[Phase::Decode], false, NotAccepted),
            (1.0, 1.1, 1.0, 0.002, &[Phase::Decode], false, Accepted),
            (1.0, 0.95, 1.0, 0.002, &[], true, NotAccepted),
            (1.1, 1.1, 1.2, 0.002, &[], false, NotAccepted),
            (1.1, 1.1, 1.01, 0.0, &[], false, Accepted),
            (1.0, 1.0, 1.0, 0.2, &[], false, CannotTell),
            (1.0, 1.0, 1.0, 0.2, &[], true, CannotTell),
        ];
        for (prefill, decode, cpu, noise, decisive, equal, expected) in cases {
            let speeds =
                [speed(Phase::Prefill, prefill, 1.0, noise), speed(Phase::Decode, decode, cpu, noise)];
            let found = checks(&speeds, &rules(decisive, equal));
            let verdict = super::super::verdict::Verdict::of(&found);
            assert_eq!(verdict, expected, "{prefill} {decode} {cpu} {noise} {decisive:?}: {found:#?}");
        }
    }

    #[test]
    fn a_noisy_b_is_not_taken_for_equal_because_a_is_steady() {
        let noisy = speed_of(Phase::Decode, 1.0, 1.0, [0.0, 0.2]);
        assert_eq!(noisy.floor, Some(0.0));
        let fast = noisy.fast(&rules(&[], true));
        assert_eq!(fast.state, CheckState::Unclear, "{fast:?}");
        assert!(fast.reason.is_some_and(|reason| reason.starts_with("B was too unsteady")));
        assert_eq!(noisy.cheap(&rules(&[], true)).state, CheckState::Unclear);
    }

    #[test]
    fn cpu_time_that_is_rather_more_is_not_passed_by_a_wide_interval() {
        let cases = [
            // Median, lower end, upper end.
            ([1.10, 1.021, 1.18], CheckState::Failed, "more"),
            ([1.10, 1.019, 1.20], CheckState::Unclear, "possibly more"),
            ([1.021, 0.99, 1.05], CheckState::Unclear, "possibly more"),
            ([1.02, 0.99, 1.05], CheckState::Passed, "not more"),
            ([1.00, 0.95, 1.05], CheckState::Passed, "not more"),
            ([1.00, 0.85, 1.15], CheckState::Unclear, "disturbed"),
            ([0.90, 0.85, 0.99], CheckState::Passed, "less"),
        ];
        for ([median, low, high], state, word) in cases {
            let mut speed = speed(Phase::Decode, 1.0, 1.0, 0.0);
            speed.cpu_ratio = Some(Ratio { median, low, high, pairs: 20 });
            let found = speed.cheap(&rules(&[], true));
            assert_eq!((found.state, found.said.ends_with(word)), (state, true), "{found:?}");
        }
    }

    #[test]
    fn equal_cpu_times_are_accepted_as_a_rule_and_5_per_cent_more_hardly_ever() {
        // Each lap deviates by 3 % in either direction, as on a quiet machine. The generator is SplitMix64 (Steele,
        // Lea, Flood, 2014).
        let mut state = 7u64;
        let mut uniform = || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            (z ^ (z >> 31)) as f64 / u64::MAX as f64
        };
        // The standard deviation of a triangular distribution is 1 / √6 of half its width.
        let mut lap = |cpu: f64| cpu * (1.0 + 0.03 * 6f64.sqrt() * (uniform() + uniform() - 1.0));
        let mut passed = |cpu: f64| {
            let races = 100;
            let mut speed = speed(Phase::Decode, 1.0, 1.0, 0.0);
            let count = (0..races).filter(|_| {
                let (a, b): (Vec<f64>, Vec<f64>) = (0..20).map(|_| (lap(1.0), lap(cpu))).unzip();
                (speed.cpu_ratio, speed.cpu_floor) = (Some(measure::ratio(&b, &a)), measure::floor(&a, 20));
                speed.cheap(&rules(&[], true)).state == CheckState::Passed
            });
            count.count() as f64 / f64::from(races)
        };
        let (equal, more) = (passed(1.0), passed(1.05));
        assert!(equal >= 0.9 && more <= 0.1, "{equal} of equal ones, {more} of those with 5 % more");
    }

    #[test]
    fn the_slowest_tokens_are_told() {
        let mut speed = speed(Phase::Decode, 1.0, 1.0, 0.0);
        assert_eq!(speed.latency(), None);
        for (side, laps) in speed.laps.iter_mut().enumerate() {
            let p99 = 12e6 * (1.0 + side as f64);
            laps.iter_mut().for_each(|lap| {
                lap.token_times = Some(TokenTimes { p50: 8e6, p95: 9e6, p99, deviation: 1e5 })
            });
        }
        let found = checks(&[speed], &rules(&[], true));
        let told = found.iter().find(|check| check.name == "token, decode").unwrap();
        assert_eq!((told.state, told.said.as_str()), (CheckState::Told, "2.000 at p99"));
        assert_eq!([told.a.as_str(), told.b.as_str()], ["p50 8.00, p99 12.00 ms", "p50 8.00, p99 24.00 ms"]);
    }

    #[test]
    fn what_was_too_short_is_not_judged() {
        let mut short = speed(Phase::Decode, 1.1, 1.0, 0.0);
        short.cpu_ratio = None;
        let found = short.cheap(&rules(&[], false));
        assert_eq!(found.state, CheckState::Unclear);
        assert!(found.reason.unwrap().contains("larger -p or -n"));
    }

    #[test]
    fn rounds_that_do_not_count_are_kept_apart() {
        let mut speed = Speed::new(Phase::Decode, 64, 1);
        let lap = |tokens_per_second: f64| {
            let usage = Usage::default();
            Lap { tokens_per_second, cpu_seconds: None, token_times: None, placement: None, usage }
        };
        speed.laps = [[5.0, 10.0, 3.0, 11.0].map(lap).to_vec(), [5.0, 20.0, 20.0, 22.0].map(lap).to_vec()];
        let samples = vec![vec![10.0, 11.0], vec![20.0, 22.0]];
        let dropped = vec![vec![3.0, 20.0]];
        speed.sort_out(Finish {
            stop: Stop::Pairs,
            samples,
            rounds: Vec::new(),
            dropped,
            new_levels: Vec::new(),
        });
        let values = |laps: &[Lap]| laps.iter().map(|lap| lap.tokens_per_second).collect::<Vec<_>>();
        assert_eq!(values(&speed.laps[0]), [10.0, 11.0]);
        assert_eq!(values(&speed.dropped[0]), [5.0, 3.0]);
        assert_eq!(speed.ratio.map(|ratio| ratio.median), Some(2.0));
    }
}
