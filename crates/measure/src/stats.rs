//! Medians of paired ratios and their bootstrap intervals.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Number of bootstrap resamples.
const RESAMPLES: usize = 10_000;

/// Minimum number of pairs for a statement at 95 %. By chance, five pairs are on the same side of 1 in one case in
/// sixteen (sign test: 2 / 2^n).
pub const FEWEST_PAIRS: usize = 6;

/// Speedup of one contestant over another, from paired runs.
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
    /// Computes the ratio from paired ratios; see [`ratio`].
    pub fn of(ratios: &[f64]) -> Self {
        if ratios.is_empty() {
            return Self { median: f64::NAN, low: f64::NAN, high: f64::NAN, pairs: 0 };
        }
        let mut random = SplitMix64(0x5eed);
        let mut draw = vec![0.0; ratios.len()];
        let mut medians: Vec<f64> = (0..RESAMPLES)
            .map(|_| {
                for slot in &mut draw {
                    *slot = ratios[random.below(ratios.len())];
                }
                middle(&mut draw)
            })
            .collect();
        medians.sort_by(f64::total_cmp);
        let percentile = |share: f64| medians[((RESAMPLES - 1) as f64 * share).round() as usize];
        let mut sorted = ratios.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (low, high) = exact(&sorted);
        Self {
            median: median(ratios),
            low: percentile(0.025).min(low),
            high: percentile(0.975).max(high),
            pairs: ratios.len(),
        }
    }

    /// Formats the ratio with its number of pairs. With too few pairs, the interval is left out.
    pub fn with_pairs(&self) -> String {
        match self.pairs {
            0 | 1 => format!("{:.2}, 1 pair", self.median),
            pairs @ ..FEWEST_PAIRS => format!("{:.2}, {pairs} pairs", self.median),
            pairs => format!("{self}, {pairs} pairs"),
        }
    }

    /// Returns the ratio for a chart. With too few pairs, the interval is only the median, so the chart shows a point.
    #[must_use]
    pub fn charted(self) -> Self {
        if self.pairs < FEWEST_PAIRS { Self { low: self.median, high: self.median, ..self } } else { self }
    }

    /// Returns the verdict in words: "higher" or "lower" only if the whole interval is on one side of 1 and there are
    /// enough pairs.
    pub fn verdict(&self) -> &'static str {
        if self.pairs < FEWEST_PAIRS { "too few pairs" } else { self.side() }
    }

    /// Returns the verdict for values without noise. One pair is enough for such values.
    pub fn side(&self) -> &'static str {
        // Values that agree to three decimals are treated as equal.
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

/// Returns the median of `values`; NaN if `values` is empty.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

/// Returns the [`median`] in a third of the time that sorting takes. Changes the order of `values`.
fn middle(values: &mut [f64]) -> f64 {
    let (half, odd) = (values.len() / 2, values.len() % 2 == 1);
    let (below, &mut upper, _) = values.select_nth_unstable_by(half, f64::total_cmp);
    if odd {
        return upper;
    }
    let lower = below.iter().copied().max_by(f64::total_cmp).unwrap_or(upper);
    (lower + upper) / 2.0
}

/// Returns the median of `a / b` over pairs, with the 95 % interval of the percentile bootstrap (Efron, 1979).
/// Pairs are drawn with replacement, and the interval ends at the 2.5th and 97.5th percentiles of the medians. The
/// generator has a constant seed, so that the same samples give the same interval.
///
/// For the median of few pairs, the bootstrap interval covers less than 95 %: on recorded noise, 7.5 of 100 races
/// between equal builds ended with a winner. If the exact interval of the sign test is wider, the exact interval is
/// used instead.
pub fn ratio(a: &[f64], b: &[f64]) -> Ratio {
    let ratios: Vec<f64> = a.iter().zip(b).map(|(a, b)| a / b).collect();
    Ratio::of(&ratios)
}

/// Returns the order statistics that enclose the median with a probability of at least 95 %, for any distribution
/// (David and Nagaraja: "Order statistics", 7.1). These are the k-th smallest and the k-th largest value. k is the
/// largest number for which 2 P(X < k) ≤ 5 %, where X is the number of heads in n coin tosses. If there are few values,
/// the order statistics are the minimum and the maximum.
fn exact(sorted: &[f64]) -> (f64, f64) {
    let n = sorted.len();
    let mut below = 0.0;
    let rare = |term: &f64| {
        below += term;
        2.0 * below <= 0.05
    };
    let k = heads(n).take_while(rare).count().max(1);
    (sorted[k - 1], sorted[n - k])
}

/// Returns the probabilities of 0, 1, 2, … heads in `n` coin tosses: C(n, k) / 2^n, each computed from the
/// previous one. The computation uses logarithms, because 2^-n underflows for 1,075 or more coins. Probabilities
/// below the smallest floating-point number are 0.
fn heads(n: usize) -> impl Iterator<Item = f64> {
    let mut log = -(n as f64) * std::f64::consts::LN_2;
    (0..=n).map(move |k| {
        let term = log.exp();
        log += ((n - k) as f64 / (k + 1) as f64).ln();
        term
    })
}

/// Returns the standard deviation of a normal distribution with the same median absolute deviation: 1.4826 MAD
/// (Rousseeuw, Croux, 1993). One outlier among three values changes the result little.
pub fn spread(values: &[f64]) -> f64 {
    let center = median(values);
    let distances: Vec<f64> = values.iter().map(|value| (value - center).abs()).collect();
    1.4826 * median(&distances)
}

/// Returns the value below which the fraction `q` of `values` lies, interpolated linearly (type 7 of Hyndman and Fan,
/// 1996); NaN if `values` is empty.
pub fn quantile(values: &[f64], q: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let at = q.clamp(0.0, 1.0) * last as f64;
    let (below, above) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    below + (above - below) * at.fract()
}

/// Returns the p-value of the two-sided sign test: the probability that chance alone puts as many of the paired
/// `ratios` on one side of 1. Ratios of exactly 1 are ignored.
pub fn sign_test(ratios: &[f64]) -> f64 {
    let above = ratios.iter().filter(|ratio| **ratio > 1.0).count();
    let below = ratios.iter().filter(|ratio| **ratio < 1.0).count();
    let (n, fewer) = (above + below, above.min(below));
    let sum: f64 = heads(n).take(fewer + 1).sum();
    (2.0 * sum).min(1.0)
}

/// Generator of Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014.
struct SplitMix64(u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `n`, or 0 if `n` is 0.
    fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.next()) * n as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_pairs_have_no_interval() {
        let words = |pairs| Ratio { median: 0.5, low: 0.4, high: 0.6, pairs }.with_pairs();
        assert_eq!([1, 2, 6].map(words), ["0.50, 1 pair", "0.50, 2 pairs", "0.500 [0.400, 0.600], 6 pairs"]);
    }

    #[test]
    fn medians() {
        for (values, expected) in [(&[3.0][..], 3.0), (&[4.0, 1.0], 2.5), (&[9.0, 1.0, 2.0], 2.0)] {
            assert_eq!(median(values), expected);
            assert_eq!(middle(&mut values.to_vec()), expected);
        }
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn the_exact_interval_is_that_of_the_tables() {
        // k for n at 95 %: 1 of 6, 2 of 9, 6 of 20, 14 of 40 (David and Nagaraja; Conover, table A3).
        for (n, k) in [(1, 1), (5, 1), (6, 1), (8, 1), (9, 2), (20, 6), (40, 14)] {
            let values: Vec<f64> = (1..=n).map(f64::from).collect();
            assert_eq!(exact(&values), (f64::from(k), f64::from(n - k + 1)), "{n}");
        }
    }

    #[test]
    fn quantiles_and_signs_are_those_computed_by_hand() {
        let values = [4.0, 1.0, 3.0, 2.0];
        for (q, expected) in [(0.0, 1.0), (0.5, 2.5), (0.95, 3.85), (1.0, 4.0)] {
            assert!((quantile(&values, q) - expected).abs() < 1e-12, "{q}");
        }
        assert!(quantile(&[], 0.5).is_nan());
        assert!((spread(&[1.0, 2.0, 3.0, 4.0, 100.0]) - 1.4826).abs() < 1e-12);
        // Ten of ten: 2 / 2^10; nine of ten: 2 (1 + 10) / 2^10; five of ten: 1.
        let signs = |above: usize, below: usize| [vec![1.1; above], vec![0.9; below]].concat();
        for (above, below, expected) in
            [(10, 0, 2.0 / 1024.0), (1, 9, 22.0 / 1024.0), (5, 5, 1.0), (0, 0, 1.0)]
        {
            assert!((sign_test(&signs(above, below)) - expected).abs() < 1e-12, "{above} {below}");
        }
        assert_eq!(Ratio::of(&[]).verdict(), "too few pairs");
    }

    #[test]
    fn thousands_of_pairs_are_judged_as_the_normal_distribution_judges_them() {
        for n in [1_000, 1_074, 1_075, 2_000, 100_000] {
            let values: Vec<f64> = (1..=n).map(f64::from).collect();
            let (low, high) = exact(&values);
            let expected = f64::from(n) / 2.0 - 1.959_964 * f64::from(n).sqrt() / 2.0;
            assert!(
                (low - expected).abs() <= 1.0 && low + high == f64::from(n) + 1.0,
                "{n}: {low}, {expected}"
            );
        }
        let signs = |above: usize, below: usize| sign_test(&[vec![1.1; above], vec![0.9; below]].concat());
        // z = 99 / √2100 with continuity correction.
        assert!((signs(1_100, 1_000) - 0.030_75).abs() < 1e-4, "{}", signs(1_100, 1_000));
        assert!((signs(1_000, 1_000) - 1.0).abs() < 1e-9);
        assert!(signs(1_200, 0) < 1e-300);
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
        let charted = few.charted();
        assert_eq!((charted.low, charted.high), (few.median, few.median));
        assert_eq!((few.verdict(), few.side()), ("too few pairs", "higher"), "{few}");
    }
}
