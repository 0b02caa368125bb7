//! Divergence between two distributions over the next token.

/// Result of comparing many positions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Comparison {
    /// Number of positions compared.
    pub positions: u32,
    /// Mean KL divergence, in nats; NaN if a logit is NaN.
    pub mean_kld: f64,
    /// Maximum KL divergence at any position, in nats.
    pub max_kld: f64,
    /// Fraction of positions with the same most likely token.
    pub top1: f64,
}

/// Converts `logits` to natural logarithms of probabilities: log-softmax in double precision.
pub fn log_softmax<T: Into<f64> + Copy>(logits: &[T]) -> Vec<f64> {
    let greatest = logits.iter().fold(f64::NEG_INFINITY, |most, &logit| most.max(logit.into()));
    let sum: f64 = logits.iter().map(|&logit| (logit.into() - greatest).exp()).sum();
    let norm = sum.ln();
    logits.iter().map(|&logit| (logit.into() - greatest) - norm).collect()
}

/// Returns the Kullback-Leibler divergence of `other` from `reference`, Σ p (ln p − ln q), in nats. Both are rows of
/// log-probabilities over the same vocabulary.
pub fn divergence(reference: &[f64], other: &[f64]) -> f64 {
    // A token with probability 0 in the reference adds nothing: 0 ln 0 is 0, not NaN.
    let term = |(p, q): (&f64, &f64)| if *p == f64::NEG_INFINITY { 0.0 } else { p.exp() * (p - q) };
    let sum: f64 = reference.iter().zip(other).map(term).sum();
    // Rounding can make the sum slightly negative.
    if sum < 0.0 && sum > -1e-9 { 0.0 } else { sum }
}

/// Steps per nat in a [`compact`] log-probability.
const STEPS: f64 = 2048.0;

/// Encodes a log-probability in 16 bits: the number n means -n / 2048. The step of 0.0005 nats adds 1e-8 to a mean
/// divergence. Values below -32 nats become -32, because such small probabilities do not matter.
pub fn compact(log_probability: f64) -> u16 {
    (-log_probability * STEPS).round().clamp(0.0, f64::from(u16::MAX)) as u16
}

/// Decodes [`compact`] log-probabilities and normalises them, so that the probabilities add up to 1. Without the
/// normalisation, rounding would appear as divergence.
pub fn expand(cells: &[u16]) -> Vec<f64> {
    let row: Vec<f64> = cells.iter().map(|cell| -f64::from(*cell) / STEPS).collect();
    log_softmax(&row)
}

/// Returns the index of the greatest value, the first one if several are equal.
pub fn most_likely<T: PartialOrd + Copy>(row: &[T]) -> usize {
    let mut best = 0;
    for (token, value) in row.iter().enumerate() {
        if *value > row[best] {
            best = token;
        }
    }
    best
}

/// Result of comparing one position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PositionComparison {
    /// KL divergence, in nats; NaN if a logit is NaN.
    pub kld: f64,
    /// True if both rows have the same most likely token.
    pub same_top: bool,
    /// True for each row whose logits are all valid numbers. Minus infinity is valid: it marks a token that never occurs.
    pub finite: [bool; 2],
}

/// Compares a row of logits with a reference row of logits.
///
/// xtask is built without optimisation, but not this crate. `inline(never)` keeps the loops over large vocabularies in
/// this crate.
#[inline(never)]
pub fn compare_position(reference: &[f32], logits: &[f32]) -> PositionComparison {
    let is_valid = |value: &f32| value.is_finite() || *value == f32::NEG_INFINITY;
    PositionComparison {
        kld: divergence(&log_softmax(reference), &log_softmax(logits)),
        same_top: most_likely(reference) == most_likely(logits),
        finite: [reference, logits].map(|row| row.iter().all(is_valid)),
    }
}

/// Sums over compared positions.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    positions: u32,
    same_top: u32,
    sum: f64,
    greatest: f64,
}

impl Tally {
    /// Adds a position with the divergence `kld`, in nats. `same_top` is true if both rows have the same most likely
    /// token.
    pub fn add(&mut self, kld: f64, same_top: bool) {
        self.positions += 1;
        self.sum += kld;
        // `f64::max` would ignore NaN.
        self.greatest =
            if kld.is_nan() || self.greatest.is_nan() { f64::NAN } else { self.greatest.max(kld) };
        self.same_top += u32::from(same_top);
    }

    /// Returns the result. The mean is NaN if there are no positions.
    pub fn comparison(&self) -> Comparison {
        let Self { positions, same_top, sum, greatest } = *self;
        let top1 = f64::from(same_top) / f64::from(positions.max(1));
        Comparison { positions, mean_kld: sum / f64::from(positions), max_kld: greatest, top1 }
    }
}

/// Compares rows of reference log-probabilities with rows of logits.
pub fn compare<'a>(rows: impl Iterator<Item = (Vec<f64>, &'a [f32])>) -> Comparison {
    let mut tally = Tally::default();
    for (reference, logits) in rows {
        let kld = divergence(&reference, &log_softmax(logits));
        tally.add(kld, most_likely(&reference) == most_likely(logits));
    }
    tally.comparison()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(found: f64, expected: f64) -> bool {
        (found - expected).abs() < 1e-12
    }

    #[test]
    fn softmax_is_that_of_the_definition_and_does_not_overflow() {
        // e^0 : e^ln3 = 1 : 3
        for shift in [0.0, 3.0e38] {
            let rows = if shift == 0.0 { [0.0, 3f32.ln()] } else { [3.0e38, 3.0e38] };
            let expected = if shift == 0.0 { [0.25, 0.75] } else { [0.5, 0.5] };
            let found = log_softmax(&rows);
            assert!(found.iter().zip(expected).all(|(f, e)| (f.exp() - e).abs() < 1e-7), "{found:?}");
        }
    }

    #[test]
    fn divergence_is_that_computed_by_hand() {
        let ln = |p: [f64; 2]| p.map(f64::ln);
        let cases = [
            // 1/2 ln(1/2 / 1/4) + 1/2 ln(1/2 / 3/4) = 1/2 ln 2 + 1/2 ln 2/3
            ([0.5, 0.5], [0.25, 0.75], 0.5 * (4.0f64 / 3.0).ln()),
            ([0.25, 0.75], [0.5, 0.5], 0.25 * 0.5f64.ln() + 0.75 * 1.5f64.ln()),
            ([0.9, 0.1], [0.9, 0.1], 0.0),
            ([0.0, 1.0], [0.25, 0.75], -0.75f64.ln()),
            ([0.0, 1.0], [0.0, 1.0], 0.0),
            ([0.5, 0.5], [0.0, 1.0], f64::INFINITY),
        ];
        for (p, q, expected) in cases {
            let found = divergence(&ln(p), &ln(q));
            assert!(found == expected || close(found, expected), "{p:?} {q:?}: {found}");
        }
    }

    #[test]
    fn a_compact_row_is_close_to_what_it_stands_for() {
        let logits: Vec<f32> =
            (0..1000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 8) as f32 / 1e6).collect();
        let exact = log_softmax(&logits);
        let cells: Vec<u16> = exact.iter().map(|p| compact(*p)).collect();
        let read = expand(&cells);
        assert!(close(read.iter().map(|p| p.exp()).sum(), 1.0));
        let kld = divergence(&read, &exact);
        assert!(kld > 0.0 && kld < 1e-7, "{kld}");
        assert_eq!((compact(f64::NEG_INFINITY), compact(0.0), compact(1e-9)), (u16::MAX, 0, 0));
    }

    #[test]
    fn a_comparison_counts_means_and_keeps_what_is_no_number() {
        let even = || vec![0.5f64.ln(), 0.5f64.ln()];
        let quarter = || vec![0.75f64.ln(), 0.25f64.ln()];
        let rows: [&[f32]; 2] = [&[0.0, 0.0], &[0.0, 0.0]];
        let found = compare([even(), quarter()].into_iter().zip(rows));
        let one = 0.75 * 1.5f64.ln() + 0.25 * 0.5f64.ln();
        assert_eq!((found.positions, found.top1), (2, 1.0));
        assert!(close(found.mean_kld, one / 2.0) && close(found.max_kld, one), "{found:?}");

        let bad: [&[f32]; 2] = [&[f32::NAN, 0.0], &[0.0, 1.0]];
        let found = compare([even(), quarter()].into_iter().zip(bad));
        assert!(found.mean_kld.is_nan() && found.max_kld.is_nan(), "{found:?}");
        assert_eq!(found.top1, 0.5);

        let none = Tally::default().comparison();
        assert!(none.mean_kld.is_nan() && (none.positions, none.top1) == (0, 0.0), "{none:?}");
    }
}
