//! Drift detection: one configuration is measured in every round, and its values show when the machine was disturbed.

use serde::{Deserialize, Serialize};

use crate::stats::{median, spread};

/// Number of robust standard deviations from the median of earlier values at which a value is considered disturbed.
/// Among undisturbed normal values, 1 in 1.7 million exceeds this limit.
const DEVIATIONS: f64 = 5.0;

/// Minimum deviation of a disturbed value. A smaller deviation does not justify repeating a round, however steady the
/// machine was before.
const LEAST: f64 = 0.05;

/// Minimum number of values for a judgement.
const FEWEST: usize = 4;

/// Number of consecutive disturbed values, close together, that indicate a new level of the machine, for example a
/// different clock frequency or another program that has started and keeps running.
const NEW_LEVEL: usize = 3;

/// Judgement of an anchor value, which applies to the samples of its round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Judgement {
    /// The samples of the round are used.
    Steady,
    /// The samples of the round are discarded and must be measured again.
    Disturbed,
    /// The samples of the round are used, and the machine now has a new level. Earlier pairs remain valid, because the
    /// machine had the same level for both members of each pair.
    NewLevel,
}

/// Judge of a configuration that is measured in every round. Fast and slow outliers are treated alike: if only slow
/// rounds were dropped, the anchor would appear to be faster than it is.
#[derive(Clone, Debug, Default)]
pub struct Anchor {
    level: Vec<f64>,
    outside: Vec<f64>,
}

impl Anchor {
    /// Creates an anchor without values.
    pub fn new() -> Self {
        Self::default()
    }

    /// Judges the next value, a positive speed or time.
    pub fn judge(&mut self, value: f64) -> Judgement {
        let log = value.ln();
        if self.level.len() < FEWEST || self.is_near(log, &self.level) {
            self.level.push(log);
            self.outside.clear();
            return Judgement::Steady;
        }
        if !self.outside.is_empty() && !self.is_near(log, &self.outside) {
            self.outside.clear();
        }
        self.outside.push(log);
        if self.outside.len() < NEW_LEVEL {
            return Judgement::Disturbed;
        }
        self.level = std::mem::take(&mut self.outside);
        Judgement::NewLevel
    }

    fn is_near(&self, log: f64, others: &[f64]) -> bool {
        (log - median(others)).abs() <= (DEVIATIONS * spread(&self.level)).max(LEAST)
    }
}

/// Returns the smallest difference that `pairs` pairs can be expected to show on this machine, as a fraction of 1.
/// The difference is the half-width of a 95 % interval around the median of the ratios, 1.96 × 1.2533 σ / √pairs. σ
/// is the standard deviation of the logarithms of ratios between neighbouring values of one configuration. The factor
/// 1.2533 is √(π/2), the ratio between the standard errors of median and mean. `None` for fewer than four values.
pub fn floor(values: &[f64], pairs: usize) -> Option<f64> {
    let ratios: Vec<f64> = values.chunks_exact(2).map(|pair| (pair[1] / pair[0]).ln()).collect();
    if ratios.len() < 2 || pairs == 0 {
        return None;
    }
    // Deviations are measured from 0 and not from the median, because the configuration is the same and the median of
    // a few ratios is inaccurate.
    let sizes: Vec<f64> = ratios.iter().map(|ratio| ratio.abs()).collect();
    let sigma = 1.4826 * median(&sizes);
    Some(1.96 * 1.2533 * sigma / (pairs as f64).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outliers_are_told_on_both_sides_and_a_level_that_stays_is_believed() {
        use Judgement::{Disturbed, NewLevel, Steady};
        let steady = [100.0, 101.0, 99.0, 100.5, 99.5];
        let cases: [(&[f64], &[Judgement]); 5] = [
            (&[100.2, 103.0], &[Steady, Steady]),
            (&[80.0, 100.0], &[Disturbed, Steady]),
            (&[125.0, 100.0], &[Disturbed, Steady]),
            (&[80.0, 80.5, 79.9, 80.1, 100.0], &[Disturbed, Disturbed, NewLevel, Steady, Disturbed]),
            // Disturbances of different sizes are not a new level.
            (&[80.0, 60.0, 80.0, 60.0], &[Disturbed; 4]),
        ];
        for (values, expected) in cases {
            let mut anchor = Anchor::new();
            for value in steady {
                assert_eq!(anchor.judge(value), Steady);
            }
            let found: Vec<Judgement> = values.iter().map(|value| anchor.judge(*value)).collect();
            assert_eq!(found, expected, "{values:?}");
        }
    }

    #[test]
    fn the_floor_falls_with_the_root_of_the_pairs() {
        let values = [1.0, 1.02, 1.0, 0.98, 1.0, 1.02, 1.0, 0.98];
        let one = floor(&values, 1).unwrap();
        // 1.4826 × ln 1.02 × 1.96 × 1.2533; the tolerance covers the difference between ln 1.02 and -ln 0.98.
        assert!((one - 0.0725).abs() < 0.002, "{one}");
        assert!((floor(&values, 16).unwrap() - one / 4.0).abs() < 1e-12);
        assert_eq!(floor(&values[..3], 10), None);
        assert_eq!(floor(&values, 0), None);
    }
}
