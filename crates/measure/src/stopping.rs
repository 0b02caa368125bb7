//! Stopping rule of a race.
//!
//! Checking after every pair and stopping at the first interval that excludes 1 would find differences between equal
//! contestants, because each check is another chance. Therefore, a difference ends a race early only at a few planned
//! checks and at a much stricter level. The 95 % interval is judged once, at the end (Pocock 1977; here with the sign
//! test, which only assumes that pairs are independent).

use serde::{Deserialize, Serialize};

use crate::stats::{FEWEST_PAIRS, Ratio, sign_test};

/// Numbers of pairs at which a difference may end a race early, each with the maximum p-value of the sign test.
/// Together these checks add at most 0.6 % to the 5 % of the final interval.
const LOOKS: [usize; 4] = [10, 14, 20, 28];
const CHANCE: f64 = 0.002;

/// Number of pairs between two checks of the interval's width.
const WIDTH_EVERY: usize = 5;

/// Reason why a race ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stop {
    /// The interval is as narrow as requested.
    Narrow,
    /// The difference cannot be explained by chance.
    Decided,
    /// All pairs were measured.
    Pairs,
    /// The time limit was reached.
    Time,
}

/// Conditions that end a race.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rule {
    /// Maximum number of pairs.
    pub pairs: usize,
    /// Target half-width of the interval: 0.01 is one per cent. 0 disables this condition.
    pub precision: f64,
}

impl Rule {
    /// Returns the reason to stop after these paired `ratios`; `None` to continue. A narrow interval may end the race
    /// on either side of 1, because the width of an interval does not depend on its position.
    pub fn over(&self, ratios: &[f64]) -> Option<Stop> {
        let pairs = ratios.len();
        if pairs >= self.pairs {
            return Some(Stop::Pairs);
        }
        if LOOKS.contains(&pairs) && sign_test(ratios) <= CHANCE {
            return Some(Stop::Decided);
        }
        // A few pairs can be close together by chance, and a single additional pair changes little.
        if self.precision > 0.0 && pairs >= FEWEST_PAIRS && pairs.is_multiple_of(WIDTH_EVERY) {
            let ratio = Ratio::of(ratios);
            if (ratio.high - ratio.low) / 2.0 <= self.precision {
                return Some(Stop::Narrow);
            }
        }
        None
    }

    /// Returns the last contestant's reason to stop, or `None` if any contestant has no reason. Each contestant is
    /// given by its paired ratios.
    pub fn over_for_all(&self, contestants: impl IntoIterator<Item = Vec<f64>>) -> Option<Stop> {
        let mut last = None;
        for ratios in contestants {
            last = Some(self.over(&ratios)?);
        }
        last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_race_ends_for_the_reason_that_comes_first() {
        let rule = Rule { pairs: 20, precision: 0.01 };
        let around = |center: f64, noise: f64, n: usize| -> Vec<f64> {
            (0..n).map(|i| center + noise * ((i % 5) as f64 - 2.0)).collect()
        };
        let cases = [
            (around(1.0, 0.001, 9), None),
            (around(1.0, 0.001, 10), Some(Stop::Narrow)),
            (around(1.0, 0.05, 10), None),
            (around(1.3, 0.05, 10), Some(Stop::Decided)),
            // This number of pairs is not a planned check.
            (around(1.3, 0.05, 11), None),
            (around(1.0, 0.05, 20), Some(Stop::Pairs)),
        ];
        for (ratios, expected) in cases {
            assert_eq!(rule.over(&ratios), expected, "{ratios:?}");
        }
    }
}
