//! When enough pairs were measured.
//!
//! Whoever looks after every pair and stops at the first interval that leaves 1 out finds differences between equal
//! things: each look is another chance. So a difference ends a race early only at a few planned looks and at a far
//! stricter level, and the interval of 95 % is judged once, at the end (Pocock 1977; here with the sign test, which
//! assumes nothing of the noise but that pairs are independent).

use serde::{Deserialize, Serialize};

use crate::stats::{FEWEST_PAIRS, Ratio, sign_test};

/// Pairs after which a difference may end a race before its last pair, and the most that the sign test may leave to
/// chance there. Together they add 0.6 % at worst to the 5 % of the last interval.
const LOOKS: [usize; 4] = [10, 14, 20, 28];
const CHANCE: f64 = 0.002;

/// The interval's width is looked at after every so many pairs.
const WIDTH_EVERY: usize = 5;

/// Why a race ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stop {
    /// The interval is as narrow as was asked for.
    Narrow,
    /// A difference that chance cannot explain.
    Decided,
    /// All pairs were measured.
    Pairs,
    /// The time that was given is over.
    Time,
}

/// When to stop.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rule {
    /// Most pairs.
    pub pairs: usize,
    /// Half the width of the interval that is narrow enough: 0.01 is one per cent. 0 never stops for it.
    pub precision: f64,
}

impl Rule {
    /// Whether the race is over after these paired `ratios`. A narrow interval may end it whatever it says: its width
    /// tells nothing of the side on which it lies.
    pub fn over(&self, ratios: &[f64]) -> Option<Stop> {
        let pairs = ratios.len();
        if pairs >= self.pairs {
            return Some(Stop::Pairs);
        }
        if LOOKS.contains(&pairs) && sign_test(ratios) <= CHANCE {
            return Some(Stop::Decided);
        }
        // Few pairs can lie close together by chance, and one more changes little.
        if self.precision > 0.0 && pairs >= FEWEST_PAIRS && pairs.is_multiple_of(WIDTH_EVERY) {
            let ratio = Ratio::of(ratios);
            if (ratio.high - ratio.low) / 2.0 <= self.precision {
                return Some(Stop::Narrow);
            }
        }
        None
    }

    /// Whether the race is over for all contestants, each with its paired ratios. The reason is that of the last one.
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
            // Not at a planned look.
            (around(1.3, 0.05, 11), None),
            (around(1.0, 0.05, 20), Some(Stop::Pairs)),
        ];
        for (ratios, expected) in cases {
            assert_eq!(rule.over(&ratios), expected, "{ratios:?}");
        }
    }
}
