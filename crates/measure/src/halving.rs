//! Successive halving (Jamieson, Talwalkar, 2016): all contestants are measured for a short time, the worse half is
//! dropped, and the others are measured for longer.
//!
//! Two functions decide which contestants are dropped. [`run`] is for builds, which are few and expensive. It
//! drops a contestant in the worse half only if the contestant is shown to be slower than the best, or if there is
//! too little time. [`cut`] is for settings, which are many. It drops the worse half by medians after two rounds;
//! two rounds are too few for an interval.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::stats::{FEWEST_PAIRS, Ratio, median, ratio};

/// Measurement round in which all remaining contestants take part.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Heat {
    /// Number of prompt tokens per run.
    pub prompt: u32,
    /// Number of generated tokens per run.
    pub generate: u32,
    /// Maximum number of pairs.
    pub pairs: usize,
    /// Target half-width of the interval.
    pub precision: f64,
}

/// Result of a heat.
#[derive(Clone, Debug, Default)]
pub struct Ran {
    /// Contestants that completed the heat; the first is the baseline.
    pub field: Vec<usize>,
    /// Samples of each contestant, one value per round; more is better.
    pub samples: Vec<Vec<f64>>,
    /// Duration of one run of one contestant.
    pub lap: Duration,
}

/// Environment in which heats run.
pub trait Course {
    /// Error that ends the race.
    type Error;

    /// Measures the contestants in `field`, interleaved. Contestants that crash are left out of the result.
    fn race(&mut self, heat: &Heat, field: &[usize], time: Duration) -> Result<Ran, Self::Error>;

    /// Returns the remaining time for measurements.
    fn left(&self) -> Duration;

    /// Reports that the contestant `who` was dropped.
    fn out(&mut self, who: usize, standing: &Standing, why: Out);
}

/// Reason why a contestant was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Out {
    /// The contestant was shown to be slower than the best.
    Slower,
    /// The contestant was not shown to be slower, but too little time is left.
    NoTime,
}

/// Result of one contestant after a heat.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Standing {
    /// Number of the contestant.
    pub who: usize,
    /// Speedup over the baseline.
    pub against_base: Ratio,
    /// Speedup over the best contestant. At most about 1.
    pub against_best: Ratio,
}

/// Fraction of the remaining time that a heat other than the last may take.
const SHARE: f64 = 0.5;

/// Runs the heats and returns the standings of the last heat, the best first. If at most two contestants remain, all
/// heats except the last are skipped.
///
/// # Errors
/// The first error of `course`.
pub fn run<C: Course>(course: &mut C, heats: &[Heat], field: &[usize]) -> Result<Vec<Standing>, C::Error> {
    let mut field = field.to_vec();
    let mut last = Vec::new();
    for (number, heat) in heats.iter().enumerate() {
        let next = heats.get(number + 1);
        if field.len() < 2 || (next.is_some() && field.len() <= 2) {
            continue;
        }
        let left = course.left();
        let ran = course.race(heat, &field, if next.is_some() { left.mul_f64(SHARE) } else { left })?;
        field.clone_from(&ran.field);
        let standings = standings(&ran);
        if let Some(next) = next {
            let room = room(heat, next, ran.lap, course.left());
            for (standing, why) in outs(&standings, ran.field[..].first().copied(), room) {
                field.retain(|who| *who != standing.who);
                course.out(standing.who, &standing, why);
            }
        }
        last = standings;
    }
    Ok(last)
}

/// Returns the standings of all contestants, the best first.
pub fn standings(ran: &Ran) -> Vec<Standing> {
    let Some(base) = ran.samples.first() else { return Vec::new() };
    let against = |other: &Vec<f64>| ran.samples.iter().map(|own| ratio(own, other)).collect::<Vec<_>>();
    let against_base = against(base);
    let better = |a: &usize, b: &usize| against_base[*a].median.total_cmp(&against_base[*b].median);
    let Some(best) = (0..ran.samples.len()).max_by(better) else { return Vec::new() };
    let against_best = against(&ran.samples[best]);
    let mut all: Vec<Standing> = ran
        .field
        .iter()
        .zip(against_base.into_iter().zip(against_best))
        .map(|(&who, (against_base, against_best))| Standing { who, against_base, against_best })
        .collect();
    all.sort_by(|a, b| b.against_base.median.total_cmp(&a.against_base.median));
    all
}

/// Returns the maximum number of contestants, at least two, for which the next heat has enough time to reach a verdict.
fn room(heat: &Heat, next: &Heat, lap: Duration, left: Duration) -> usize {
    let grows = |now: u32, then: u32| if now == 0 { 1.0 } else { f64::from(then) / f64::from(now) };
    let longer = grows(heat.prompt, next.prompt).max(grows(heat.generate, next.generate));
    // One additional round is the warm-up.
    let each = lap.as_secs_f64() * longer * (FEWEST_PAIRS + 1) as f64;
    if each > 0.0 { ((left.as_secs_f64() / each) as usize).max(2) } else { usize::MAX }
}

/// Selects the contestants to drop after a heat. The baseline `base` is always kept.
fn outs(standings: &[Standing], base: Option<usize>, room: usize) -> Vec<(Standing, Out)> {
    let slower =
        |standing: &Standing| standing.against_best.pairs >= FEWEST_PAIRS && standing.against_best.high < 1.0;
    let worse_half = better_half(standings.len());
    let (stay, leave): (Vec<_>, Vec<_>) = standings
        .iter()
        .enumerate()
        .map(|(place, standing)| (*standing, place >= worse_half && slower(standing)))
        .partition(|(standing, out)| Some(standing.who) == base || !out);
    let mut outs: Vec<(Standing, Out)> = leave.into_iter().map(|(who, _)| (who, Out::Slower)).collect();
    let excess = stay.len().saturating_sub(room);
    let last = stay.into_iter().rev().filter(|(standing, _)| Some(standing.who) != base);
    // Contestants shown to be slower are dropped first, then the worst of the others.
    let (mut first, second): (Vec<_>, Vec<_>) =
        last.map(|(standing, _)| standing).partition(|standing| slower(standing));
    first.extend(second);
    outs.extend(
        first
            .into_iter()
            .take(excess)
            .map(|standing| (standing, if slower(&standing) { Out::Slower } else { Out::NoTime })),
    );
    outs
}

/// Returns the size of the better half of `n`, rounded up.
fn better_half(n: usize) -> usize {
    n.div_ceil(2)
}

/// [`cut`] drops a contestant whose speedup is below this value in every round.
const HOPELESS: f64 = 0.95;
/// Number of rounds after which [`cut`] also drops a contestant that was slower than the baseline in every round.
const FUTILE: usize = 4;

/// Contestant of [`cut`].
#[derive(Clone, Debug, PartialEq)]
pub struct Entrant {
    /// Number of the contestant.
    pub who: usize,
    /// Median of the ratios to the baseline.
    pub median: f64,
    ratios: Vec<f64>,
}

impl Entrant {
    /// Creates an entrant from its speedups over the baseline, one per round.
    pub fn new(who: usize, ratios: Vec<f64>) -> Self {
        Self { who, median: median(&ratios), ratios }
    }

    fn is_hopeless(&self) -> bool {
        let futile = self.ratios.len() >= FUTILE && self.ratios.iter().all(|ratio| *ratio < 1.0);
        futile || self.ratios.iter().all(|ratio| *ratio < HOPELESS)
    }
}

/// Result of [`cut`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cut {
    /// Remaining contestants, the best first.
    pub stay: Vec<Entrant>,
    /// Contestants that were slower in every round.
    pub hopeless: Vec<Entrant>,
    /// Worse half of the remaining contestants, the best first.
    pub worse_half: Vec<Entrant>,
}

/// Decides by medians which contestants are dropped after a rung. `entrants` does not contain the baseline. A single
/// entrant is kept unless it is hopeless.
pub fn cut(entrants: Vec<Entrant>) -> Cut {
    let (hopeless, mut stay): (Vec<_>, Vec<_>) = entrants.into_iter().partition(Entrant::is_hopeless);
    stay.sort_by(|a, b| b.median.total_cmp(&a.median));
    let worse_half = stay.split_off(better_half(stay.len()));
    Cut { stay, hopeless, worse_half }
}

/// Chooses the winner and states the reason. The winner is the simplest contestant that is not shown to be slower
/// than the best.
pub fn choose(
    standings: &[Standing],
    steps: impl Fn(usize) -> u32,
    name: impl Fn(usize) -> String,
) -> Option<(usize, String)> {
    let best = standings.first()?;
    let simplest = |among: &mut dyn Iterator<Item = &Standing>| {
        // Among equally simple contestants, the first contestant is the fastest.
        among.map(|standing| standing.who).min_by_key(|who| steps(*who))
    };
    if best.against_best.pairs < FEWEST_PAIRS {
        let stays = simplest(&mut standings.iter())?;
        let pairs = best.against_best.pairs;
        return Some((
            stays,
            format!(
                "too few pairs for a decision ({pairs}, but at least {FEWEST_PAIRS} are needed), so {} is kept",
                name(stays)
            ),
        ));
    }
    let winner = simplest(&mut standings.iter().filter(|standing| standing.against_best.high >= 1.0))?;
    let words = if winner == best.who {
        match standings.iter().find(|standing| standing.who != winner) {
            Some(second) if second.against_best.high >= 1.0 => format!(
                "{} is the simplest of the equally fast candidates ({} is {} times as fast, no difference shown)",
                name(winner),
                name(second.who),
                second.against_best
            ),
            Some(second) => {
                format!(
                    "{} is the fastest ({} is {} times as fast)",
                    name(winner),
                    name(second.who),
                    second.against_best
                )
            }
            None => format!("{} is the only candidate left", name(winner)),
        }
    } else {
        let own = standings.iter().find(|standing| standing.who == winner)?;
        format!(
            "{} is simpler than {} and {} times as fast (no difference shown)",
            name(winner),
            name(best.who),
            own.against_best
        )
    };
    Some((winner, words))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Course with fixed speeds, and noise that is the same in every run.
    struct Planted {
        speeds: Vec<f64>,
        noise: f64,
        crashes: Option<usize>,
        left: Duration,
        lap: Duration,
        state: u64,
        raced: Vec<Vec<usize>>,
        outs: Vec<(usize, Out)>,
    }

    impl Planted {
        fn new(speeds: &[f64], noise: f64) -> Self {
            Self {
                speeds: speeds.to_vec(),
                noise,
                crashes: None,
                left: Duration::from_secs(10_000),
                lap: Duration::from_secs(1),
                state: 7,
                raced: Vec::new(),
                outs: Vec::new(),
            }
        }

        fn random(&mut self) -> f64 {
            self.state =
                self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.state >> 11) as f64 / (1u64 << 53) as f64 * 2.0 - 1.0
        }
    }

    impl Course for Planted {
        type Error = std::convert::Infallible;

        fn race(&mut self, heat: &Heat, field: &[usize], time: Duration) -> Result<Ran, Self::Error> {
            self.raced.push(field.to_vec());
            let field: Vec<usize> = field.iter().copied().filter(|who| Some(*who) != self.crashes).collect();
            let lap = self.lap.mul_f64(f64::from(heat.prompt) / 128.0);
            let rounds = (time.as_secs_f64() / lap.as_secs_f64() / field.len() as f64) as usize;
            let rounds = rounds.saturating_sub(1).min(heat.pairs);
            let samples = field
                .iter()
                .map(|&who| {
                    (0..rounds).map(|_| self.speeds[who] * (1.0 + self.noise * self.random())).collect()
                })
                .collect();
            let spent = lap.mul_f64(((rounds + 1) * field.len()) as f64);
            self.left = self.left.saturating_sub(spent);
            Ok(Ran { field, samples, lap })
        }

        fn left(&self) -> Duration {
            self.left
        }

        fn out(&mut self, who: usize, _: &Standing, why: Out) {
            self.outs.push((who, why));
        }
    }

    const HEATS: [Heat; 2] = [
        Heat { prompt: 128, generate: 16, pairs: 10, precision: 0.0 },
        Heat { prompt: 512, generate: 64, pairs: 20, precision: 0.0 },
    ];

    fn win(course: &mut Planted, steps: &[u32]) -> (usize, String) {
        let field: Vec<usize> = (0..course.speeds.len()).collect();
        let standings = run(course, &HEATS, &field).unwrap();
        choose(&standings, |who| steps[who], |who| format!("build {who}")).unwrap()
    }

    #[test]
    fn the_fastest_wins_and_at_equality_the_simpler_one() {
        // Speeds, steps, winner, part of the verdict.
        let cases: [(&[f64], &[u32], usize, &str); 6] = [
            (&[1.0, 1.2, 1.0, 0.8, 1.1], &[0, 1, 1, 1, 1], 1, "is the fastest"),
            (&[1.0, 1.0, 1.0, 1.0], &[0, 1, 1, 2], 0, "no difference shown"),
            (&[1.0, 1.3, 1.3], &[0, 2, 1], 2, "no difference shown"),
            (&[1.0, 0.7], &[1, 0], 0, "is the fastest"),
            // In this case, the baseline is not the simplest contestant.
            (&[0.7, 1.0, 1.0, 0.95], &[1, 0, 1, 1], 1, "no difference shown"),
            (&[1.0, 1.0], &[0, 1], 0, "no difference shown"),
        ];
        for (speeds, steps, expected, words) in cases {
            let (winner, verdict) = win(&mut Planted::new(speeds, 0.02), steps);
            assert_eq!(winner, expected, "{speeds:?}: {verdict}");
            assert!(verdict.contains(words), "{speeds:?}: {verdict}");
        }
    }

    #[test]
    fn only_what_is_shown_slower_leaves_and_the_baseline_stays() {
        let mut course = Planted::new(&[0.5, 1.2, 1.19, 0.8, 1.21, 0.9], 0.05);
        win(&mut course, &[0; 6]);
        assert_eq!(course.raced[0], [0, 1, 2, 3, 4, 5]);
        // Contestant 2 may be in the worse half, but is not shown to be slower.
        assert_eq!(course.raced[1], [0, 1, 2, 4]);
        assert_eq!(course.outs, [(5, Out::Slower), (3, Out::Slower)]);
    }

    #[test]
    fn a_budget_that_does_not_reach_drops_the_last_and_says_so() {
        let mut course = Planted::new(&[1.0, 1.001, 1.002, 0.999, 0.998, 1.0], 0.05);
        // 6 × 7 laps, then 4 s per lap.
        course.left = Duration::from_secs(150);
        let (_, verdict) = win(&mut course, &[0, 1, 1, 1, 1, 1]);
        assert!(course.raced[1].len() < 6 && course.raced[1][0] == 0, "{:?}", course.raced);
        assert!(course.outs.iter().all(|(_, why)| *why == Out::NoTime), "{:?}", course.outs);
        assert!(!course.outs.is_empty(), "{verdict}");
    }

    #[test]
    fn too_few_pairs_change_nothing() {
        let mut course = Planted::new(&[1.0, 2.0], 0.0);
        course.left = Duration::from_secs(20);
        let (winner, verdict) = win(&mut course, &[0, 1]);
        assert_eq!(winner, 0, "{verdict}");
        assert!(verdict.contains("too few"), "{verdict}");
    }

    #[test]
    fn two_go_straight_to_the_last_heat_and_who_crashes_is_gone() {
        let mut course = Planted::new(&[1.0, 1.1], 0.01);
        assert_eq!(win(&mut course, &[0, 1]).0, 1);
        assert_eq!(course.raced.len(), 1);
        let mut course = Planted::new(&[1.0, 9.0, 1.1], 0.01);
        course.crashes = Some(1);
        assert_eq!(win(&mut course, &[0, 1, 1]).0, 2);
        assert_eq!(course.raced, [vec![0, 1, 2], vec![0, 2]]);
    }

    #[test]
    fn the_hopeless_and_the_worse_half_are_cut() {
        let ratios: [&[f64]; 6] =
            [&[1.0, 1.1], &[0.9, 0.9], &[1.2, 1.3], &[0.99, 0.96, 0.98, 0.97], &[1.0, 0.9], &[1.4, 0.94]];
        let entrants = ratios.iter().enumerate().map(|(at, ratios)| Entrant::new(at + 1, ratios.to_vec()));
        let found = cut(entrants.collect());
        let names = |entrants: &[Entrant]| entrants.iter().map(|entrant| entrant.who).collect::<Vec<_>>();
        assert_eq!(
            (names(&found.stay), names(&found.hopeless), names(&found.worse_half)),
            (vec![3, 6], vec![2, 4], vec![1, 5])
        );
        assert_eq!(names(&cut(vec![Entrant::new(1, vec![0.96, 0.99])]).stay), [1]);
    }

    #[test]
    fn a_false_winner_among_equals_is_rare() {
        let mut wrong = 0;
        for seed in 0..100 {
            let mut course = Planted::new(&[1.0; 4], 0.05);
            course.state = seed * 7919 + 1;
            let (winner, _) = win(&mut course, &[0, 1, 1, 1]);
            wrong += usize::from(winner != 0);
        }
        assert!(wrong <= 10, "{wrong} of 100");
    }
}
