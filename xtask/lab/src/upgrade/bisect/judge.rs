//! Verdict on one version from its ratio to the first version: pure functions.

use measure::Ratio;

use super::search::VersionVerdict;

/// Verdict on the ratio of the last version to the first version, before a search begins.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Ends {
    /// The figure is worse. A version below this ratio to the first version is bad.
    Worse {
        /// Midpoint between the first and the last version, as a ratio to the first version.
        threshold: f64,
    },
    /// The figure is better, so the ends are in the wrong order.
    Better,
    /// No difference was shown.
    Same,
    /// The figure is worse, but the interval is wider than the difference, so a threshold would be arbitrary.
    Unclear,
}

/// Judges the ends of a search. `ratio` is above 1 if the last version is faster.
pub fn ends(ratio: &Ratio) -> Ends {
    match ratio.verdict() {
        "lower" if ratio.high - ratio.low > 1.0 - ratio.median => Ends::Unclear,
        // The geometric mean is equally far from both ends.
        "lower" => Ends::Worse { threshold: ratio.median.max(0.0).sqrt() },
        "higher" => Ends::Better,
        _ => Ends::Same,
    }
}

/// Judges a version by its `ratio` to the first version. Returns `None` if the interval contains the threshold, or
/// if there are too few pairs.
pub fn version(ratio: &Ratio, threshold: f64) -> Option<VersionVerdict> {
    if ratio.pairs < measure::FEWEST_PAIRS || ratio.low.is_nan() || ratio.high.is_nan() {
        None
    } else if ratio.low > threshold {
        Some(VersionVerdict::Good)
    } else if ratio.high < threshold {
        Some(VersionVerdict::Bad)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ratio(low: f64, median: f64, high: f64, pairs: usize) -> Ratio {
        Ratio { median, low, high, pairs }
    }

    #[test]
    fn the_ends_must_differ_in_the_right_direction() {
        let cases = [
            (ratio(0.80, 0.81, 0.82, 10), Ends::Worse { threshold: 0.9 }),
            (ratio(0.90, 0.92, 0.97, 10), Ends::Worse { threshold: 0.92f64.sqrt() }),
            (ratio(1.08, 1.10, 1.12, 10), Ends::Better),
            // Measured on a busy machine.
            (ratio(0.600, 0.787, 0.912, 10), Ends::Unclear),
            (ratio(0.98, 1.00, 1.02, 10), Ends::Same),
            (ratio(0.999_9, 1.0, 1.000_1, 10), Ends::Same),
            // Five pairs are on one side by chance in one case in sixteen.
            (ratio(0.80, 0.81, 0.82, 5), Ends::Same),
            (Ratio::of(&[]), Ends::Same),
        ];
        for (ratio, expected) in cases {
            match (ends(&ratio), expected) {
                (Ends::Worse { threshold }, Ends::Worse { threshold: expected }) => {
                    assert!((threshold - expected).abs() < 1e-9, "{threshold}");
                }
                (found, expected) => assert_eq!(found, expected, "{ratio}"),
            }
        }
    }

    #[test]
    fn the_whole_interval_must_be_on_one_side() {
        let threshold = 0.95;
        let cases = [
            (ratio(0.98, 1.00, 1.02, 10), Some(VersionVerdict::Good)),
            (ratio(0.89, 0.90, 0.91, 10), Some(VersionVerdict::Bad)),
            (ratio(0.94, 0.97, 0.99, 10), None),
            (ratio(0.96, 0.97, 0.98, 10), Some(VersionVerdict::Good)),
            (ratio(0.98, 1.00, 1.02, 5), None),
            (Ratio::of(&[]), None),
        ];
        for (ratio, expected) in cases {
            assert_eq!(version(&ratio, threshold), expected, "{ratio}");
        }
    }
}
