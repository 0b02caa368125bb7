//! Medians of paired ratios and their bootstrap intervals.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Resamples of a bootstrap.
const RESAMPLES: usize = 10_000;

/// With fewer pairs nothing can be said at 95 %: that all of five fall on one side happens by chance in one case of
/// sixteen (the sign test: 2 / 2^n).
pub const FEWEST_PAIRS: usize = 6;

/// How many times as fast one thing is as another, from pairs measured side by side.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// Median of the pairs' ratios.
    pub median: f64,
    /// Lower end of the 95 % interval.
    pub low: f64,
    /// Upper end of the 95 % interval.
    pub high: f64,
    /// Number of pairs.
    pub pairs: usize,
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{:.3} [{:.3}, {:.3}]", self.median, self.low, self.high))
    }
}

impl Ratio {
    /// What may be said: "higher" and "lower" only when the whole interval lies on one side of 1, and of enough pairs.
    pub fn verdict(&self) -> &'static str {
        if self.pairs < FEWEST_PAIRS { "too few pairs" } else { self.side() }
    }

    /// The same of values that do not vary, for which one pair is enough.
    pub fn side(&self) -> &'static str {
        // What three decimals show as equal is no difference to anybody.
        let equal = |end: f64| (end - 1.0).abs() < 0.000_5;
        if equal(self.low) && equal(self.high) {
            "equal"
        } else if self.low > 1.0 {
            "higher"
        } else if self.high < 1.0 {
            "lower"
        } else {
            "no difference shown"
        }
    }
}

/// The median of `values`; NaN of none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

/// The median of `a / b` over pairs, with the percentile bootstrap's 95 % interval (Efron, 1979): pairs are drawn
/// with replacement, and the 2.5th and 97.5th percentile of the medians taken. The generator is seeded by a
/// constant, so that the same samples give the same interval.
pub fn ratio(a: &[f64], b: &[f64]) -> Ratio {
    let ratios: Vec<f64> = a.iter().zip(b).map(|(a, b)| a / b).collect();
    let mut random = SplitMix64(0x5eed);
    let mut draw = vec![0.0; ratios.len()];
    let mut medians: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            for slot in &mut draw {
                *slot = ratios[random.below(ratios.len())];
            }
            median(&draw)
        })
        .collect();
    medians.sort_by(f64::total_cmp);
    let percentile = |share: f64| medians[((RESAMPLES - 1) as f64 * share).round() as usize];
    Ratio { median: median(&ratios), low: percentile(0.025), high: percentile(0.975), pairs: ratios.len() }
}

/// Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014.
struct SplitMix64(u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`, 0 if `n` is 0.
    fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.next()) * n as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        for (values, expected) in [(&[3.0][..], 3.0), (&[4.0, 1.0], 2.5), (&[9.0, 1.0, 2.0], 2.0)] {
            assert_eq!(median(values), expected);
        }
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn a_planted_difference_is_told_and_none_is_not_invented() {
        let mut random = SplitMix64(1);
        let mut noise = || 1.0 + (random.below(2001) as f64 - 1000.0) / 1000.0 * 0.05;
        let base: Vec<f64> = (0..40).map(|_| 100.0 * noise()).collect();
        let same: Vec<f64> = (0..40).map(|_| 100.0 * noise()).collect();
        let faster: Vec<f64> = (0..40).map(|_| 110.0 * noise()).collect();
        let planted = ratio(&faster, &base);
        assert_eq!(planted.verdict(), "higher", "{planted}");
        assert!((planted.median - 1.1).abs() < 0.04, "{planted}");
        assert_eq!(ratio(&base, &faster).verdict(), "lower");
        assert_eq!(ratio(&same, &base).verdict(), "no difference shown");
        assert_eq!(ratio(&same, &base), ratio(&same, &base));
        let few = ratio(&faster[..FEWEST_PAIRS - 1], &base);
        assert_eq!((few.verdict(), few.side()), ("too few pairs", "higher"), "{few}");
    }
}
