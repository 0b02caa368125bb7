//! Races: interleaved rounds of contestants that end when the result is known.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::disturbance::{Round, Watch};
use crate::referee::{Call, Referee};
use crate::schedule;
use crate::stats::Ratio;
use crate::stopping::{Rule, Stop};

/// Settings of a race. The first contestant is the anchor: the other contestants are compared with the anchor, and
/// the anchor's values show disturbances of the machine.
#[derive(Clone, Copy, Debug)]
pub struct Race {
    /// Number of contestants, at least 2.
    pub contestants: usize,
    /// Stopping rule.
    pub rule: Rule,
    /// Number of warm-up rounds, which do not count.
    pub warm_up: usize,
    /// Maximum number of rounds that are repeated because of a disturbed anchor. Later disturbed rounds count, so
    /// that the race also ends on a machine that never settles.
    pub repeats: usize,
    /// Maximum total time. A round that would exceed this time is not started.
    pub time: Option<Duration>,
}

/// Result of a race.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finish {
    /// Reason why the race ended.
    pub stop: Stop,
    /// Samples of each contestant, one value per counted round.
    pub samples: Vec<Vec<f64>>,
    /// Load from other processes in the counted rounds.
    pub rounds: Vec<Round>,
    /// Values of dropped rounds, in which the anchor was disturbed or a value was not a positive number.
    pub dropped: Vec<Vec<f64>>,
    /// Numbers of the rounds after which the machine had a new level; see [`crate::Judgement::NewLevel`].
    pub new_levels: Vec<usize>,
}

impl Finish {
    /// Returns the ratio of contestant `number` to the anchor, for values where higher is better.
    pub fn ratio(&self, number: usize) -> Ratio {
        Ratio::of(&self.ratios(number))
    }

    /// Returns the paired ratios from which [`Finish::ratio`] is computed.
    pub fn ratios(&self, number: usize) -> Vec<f64> {
        self.samples[number].iter().zip(&self.samples[0]).map(|(own, anchor)| own / anchor).collect()
    }
}

impl Race {
    /// Runs the race. `lap` measures the contestant with the given number once and returns a positive value; higher
    /// is better.
    ///
    /// # Errors
    /// The first error of `lap`, which ends the race.
    pub fn run<E>(&self, mut lap: impl FnMut(usize) -> Result<f64, E>) -> Result<Finish, E> {
        let started = Instant::now();
        let mut finish = Finish {
            stop: Stop::Pairs,
            samples: vec![Vec::new(); self.contestants],
            rounds: Vec::new(),
            dropped: Vec::new(),
            new_levels: Vec::new(),
        };
        let mut referee = Referee::new(self.repeats);
        let mut longest = Duration::ZERO;
        for number in 0.. {
            if self.time.is_some_and(|time| number > 0 && started.elapsed() + longest > time) {
                finish.stop = Stop::Time;
                break;
            }
            let (began, watch) = (Instant::now(), Watch::start());
            let values = schedule::turns(number, self.contestants, &mut lap)?;
            longest = longest.max(began.elapsed());
            if number < self.warm_up {
                continue;
            }
            finish.take(values, watch.stop(), &mut referee);
            if let Some(stop) = self.over(&finish) {
                finish.stop = stop;
                break;
            }
        }
        Ok(finish)
    }

    /// Returns the reason to stop; `None` until every contestant has a reason.
    fn over(&self, finish: &Finish) -> Option<Stop> {
        self.rule.over_for_all((1..self.contestants).map(|number| finish.ratios(number)))
    }
}

impl Finish {
    fn take(&mut self, values: Vec<f64>, round: Round, referee: &mut Referee) {
        let numbers = values.iter().all(|value| value.is_finite() && *value > 0.0);
        match referee.judge(numbers.then_some(values[0])) {
            Call::Again => {
                self.dropped.push(values);
                return;
            }
            Call::NewLevel => self.new_levels.push(self.rounds.len()),
            Call::Counts => {}
        }
        for (samples, value) in self.samples.iter_mut().zip(values) {
            samples.push(value);
        }
        self.rounds.push(round);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn race(pairs: usize) -> Race {
        Race { contestants: 2, rule: Rule { pairs, precision: 0.0 }, warm_up: 1, repeats: 4, time: None }
    }

    /// Replays rounds of (anchor, other).
    fn replay(race: &Race, rounds: &[[f64; 2]]) -> Finish {
        let mut laps = 0;
        let lap = |contestant: usize| {
            let value = rounds[(laps / 2).min(rounds.len() - 1)][contestant];
            laps += 1;
            Ok::<_, ()>(value)
        };
        race.run(lap).expect("no lap fails")
    }

    #[test]
    fn rounds_around_a_disturbed_anchor_are_repeated() {
        let mut rounds = vec![[50.0, 50.0]]; // warming up
        rounds.extend((0..6).map(|i| [100.0 + f64::from(i % 2), 102.0]));
        rounds.insert(6, [60.0, 102.0]);
        rounds.insert(7, [100.0, f64::NAN]);
        let finish = replay(&race(6), &rounds);
        assert_eq!((finish.stop, finish.samples[0].len(), finish.dropped.len()), (Stop::Pairs, 6, 2));
        assert_eq!(finish.dropped[0], [60.0, 102.0]);
        assert!(finish.ratio(1).low > 1.0, "{}", finish.ratio(1));
    }

    #[test]
    fn a_machine_that_never_rests_still_finishes() {
        let rounds: Vec<[f64; 2]> =
            (0..40).map(|i| [100.0 * [1.0, 0.5, 1.0, 2.0, 1.0, 0.7][i % 6], 100.0]).collect();
        let finish = replay(&race(12), &rounds);
        assert_eq!((finish.stop, finish.samples[0].len()), (Stop::Pairs, 12));
        assert!(finish.dropped.len() <= 4);
    }

    #[test]
    fn an_error_ends_it_and_so_does_the_time() {
        let mut laps = 0;
        let result = race(6).run(|_| {
            laps += 1;
            if laps == 3 { Err("crashed") } else { Ok(1.0) }
        });
        assert_eq!(result, Err("crashed"));
        let short = Race { time: Some(Duration::ZERO), ..race(6) };
        assert_eq!(replay(&short, &[[1.0, 1.0]]).stop, Stop::Time);
    }
}
