//! Drift: the same configuration measured again and again tells when the machine was not itself.

use serde::{Deserialize, Serialize};

use crate::stats::{median, spread};

/// A value this many robust standard deviations from the median of its like was disturbed. Among undisturbed normal
/// values one in 1.7 million is.
const DEVIATIONS: f64 = 5.0;

/// A deviation smaller than this is nothing to repeat a round for, however steady the machine was before.
const LEAST: f64 = 0.05;

/// Values before anything can be said.
const FEWEST: usize = 4;

/// So many disturbed values in a row, close together, are no disturbance but the machine as it now is: another clock, a
/// neighbour that stays.
const NEW_LEVEL: usize = 3;

/// What a value of the anchor says of the samples around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Judgement {
    /// They count.
    Steady,
    /// They do not, and are to be measured again.
    Disturbed,
    /// They count, and from here on the machine is another: the pairs before are pairs still, since each was measured
    /// on one machine.
    NewLevel,
}

/// Watches a configuration that is measured in every round. Values above and below are judged alike: dropping only slow
/// rounds would make the anchor look faster than it is.
#[derive(Clone, Debug, Default)]
pub struct Anchor {
    level: Vec<f64>,
    outside: Vec<f64>,
}

impl Anchor {
    /// None seen yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next value, which is positive: a speed or a time.
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

/// The smallest difference that `pairs` pairs can be expected to show on this machine, as a part of 1: the half-width of
/// a 95 % interval around the median of their ratios, 1.96 × 1.2533 σ / √pairs, where σ is that of the logarithms of
/// ratios between neighbouring values of one configuration (the median's standard error is √(π/2) times the mean's).
/// `None` of fewer than four values.
pub fn floor(values: &[f64], pairs: usize) -> Option<f64> {
    let ratios: Vec<f64> = values.chunks_exact(2).map(|pair| (pair[1] / pair[0]).ln()).collect();
    if ratios.len() < 2 || pairs == 0 {
        return None;
    }
    // Around 0, not around their median: the configuration is the same, and few ratios have a poor median.
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
            // Disturbances of different sizes are no level.
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
        // 1.4826 × ln 1.02 × 1.96 × 1.2533, within the difference between ln 1.02 and -ln 0.98
        assert!((one - 0.0725).abs() < 0.002, "{one}");
        assert!((floor(&values, 16).unwrap() - one / 4.0).abs() < 1e-12);
        assert_eq!(floor(&values[..3], 10), None);
        assert_eq!(floor(&values, 0), None);
    }
}
