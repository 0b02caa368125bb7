//! Checks that a candidate's output equals the output of the untuned settings.
//!
//! The limits are the same as in the correctness gate (docs/src/build/gate.md): a mean divergence far below the
//! smallest step of quantisation. For models that amplify rounding, the limits are wider: the divergence that a
//! different order of summation causes with the untuned settings.

use std::fmt;

use build_info::Logits;
use build_info::gate::GateLimits;
use build_info::tuning::Chosen;

use super::space::{changes_numerics, is_lossy};

/// Limits for settings that only change the order of sums.
const EXACT: GateLimits = GateLimits::GATE;
/// Limits for settings that lose accuracy by design: between Q8_0 (2.4e-4) and a 5-bit quantisation.
const LOSSY: GateLimits = GateLimits { mean_kld: 5e-3, top1: 0.97 };
/// Maximum difference between two logits whose tokens are treated as equally likely. The order of such tokens is
/// irrelevant.
const TIE: f32 = 0.02;

/// Comparison of two outputs for one text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OutputComparison {
    /// Number of compared positions.
    pub positions: u32,
    /// Mean KL divergence in nats; NaN if a logit is NaN.
    pub mean_kld: f64,
    /// Fraction of positions with the same or an equally likely best token.
    pub top1: f64,
    /// Number of greedily chosen tokens after the text.
    pub greedy: u32,
    /// Number of equal greedy tokens before the first difference.
    pub equal: u32,
    /// Effect that rounding alone has on this model; `None` if it was not measured.
    pub rounding: Option<Rounding>,
}

/// Comparison of the untuned output with the same output evaluated in smaller graphs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rounding {
    /// Mean KL divergence in nats.
    pub mean_kld: f64,
    /// Fraction of positions with the same or an equally likely best token.
    pub top1: f64,
}

impl OutputComparison {
    /// True if the output is within the gate's limits.
    pub fn is_exact(&self) -> bool {
        EXACT.hold(self.mean_kld, self.top1)
    }

    /// Returns the limits for settings that only change the order of sums.
    fn limits(&self) -> GateLimits {
        match self.rounding {
            Some(Rounding { mean_kld, top1 }) => EXACT.or_as_near_as(mean_kld, top1, self.positions),
            None => EXACT,
        }
    }
}

impl fmt::Display for OutputComparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mean_kld, top1, greedy, equal, .. } = self;
        write!(
            f,
            "{equal} of {greedy} greedy tokens equal, mean KLD {mean_kld:.1e}, top-1 {:.1} %",
            100.0 * top1
        )
    }
}

/// Compares the logits after each of the first `text` tokens, and after the greedy tokens that follow, up to the
/// first difference.
pub fn compare(reference: &Logits, other: &Logits, text: usize) -> OutputComparison {
    let same = reference.tokens.iter().zip(&other.tokens).take_while(|(a, b)| a == b).count();
    let after_text = |tokens: usize| u32::try_from(tokens.saturating_sub(text)).unwrap_or(u32::MAX);
    let mut tally = kld::Tally::default();
    for (a, b) in reference.rows().zip(other.rows()).take(same) {
        let kld = kld::divergence(&kld::log_softmax(a), &kld::log_softmax(b));
        tally.add(kld, a.len() == b.len() && agree(a, b));
    }
    let kld::Comparison { positions, mean_kld, top1, .. } = tally.comparison();
    let (greedy, equal) = (after_text(reference.tokens.len()), after_text(same));
    OutputComparison { positions, mean_kld, top1, greedy, equal, rounding: None }
}

/// Decides whether `candidate` may be used. On success, returns a description of the output.
///
/// # Errors
/// A description of the reason why `candidate` may not be used.
pub fn judge(candidate: &Chosen, found: &OutputComparison) -> Result<String, String> {
    let limits = if is_lossy(candidate) { LOSSY } else { found.limits() };
    let within = limits.hold(found.mean_kld, found.top1);
    // If logits are NaN, the first token is always chosen, so equal tokens prove nothing.
    let equal = found.positions > 0 && found.equal == found.greedy && !found.mean_kld.is_nan();
    // Kernels that round their inputs differently, such as AMX's tiles, diverge more but choose the same tokens.
    let same = equal && found.top1 >= EXACT.top1 && found.mean_kld <= LOSSY.mean_kld;
    match (changes_numerics(candidate), equal, within || same) {
        (true, _, true) | (false, true, _) => Ok(found.to_string()),
        (true, ..) => {
            let GateLimits { mean_kld, top1 } = limits;
            Err(format!(
                "its output differs: {found}; limits: mean KLD {mean_kld:.0e}, top-1 {:.1} %",
                100.0 * top1
            ))
        }
        (false, ..) => Err(format!("its output differs, although the setting must not change it: {found}")),
    }
}

/// True if `reference` considers no token more likely than the most likely token of `other`.
fn agree(reference: &[f32], other: &[f32]) -> bool {
    let first = |row: &[f32]| (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b]));
    let (Some(ours), Some(theirs)) = (first(reference), first(other)) else { return false };
    ours == theirs || reference[ours] - reference[theirs] < TIE
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logits(rows: &[(u32, [f32; 3])]) -> Logits {
        let mut logits = Logits::new(3);
        rows.iter().for_each(|(token, row)| logits.push(*token, row));
        logits
    }

    #[test]
    fn outputs_are_compared_as_far_as_the_same_tokens_go() {
        let reference = logits(&[(7, [0.0, 1.0, 2.0]), (2, [3.0, 0.0, 0.0]), (0, [0.0, 5.0, 0.0])]);
        let same = compare(&reference, &reference, 1);
        assert_eq!(
            same,
            OutputComparison { positions: 3, mean_kld: 0.0, top1: 1.0, greedy: 2, equal: 2, rounding: None }
        );
        let other = logits(&[(7, [0.0, 2.0, 1.0]), (1, [9.0, 0.0, 0.0]), (0, [0.0, 5.0, 0.0])]);
        let found = compare(&reference, &other, 1);
        assert_eq!((found.positions, found.top1, found.greedy, found.equal), (1, 0.0, 2, 0));
        // p = softmax(0, 1, 2), q = softmax(0, 2, 1): Σ p (ln p − ln q) = p1·(1−2) + p2·(2−1)
        let total = 1.0 + 1f64.exp() + 2f64.exp();
        let expected = (2f64.exp() - 1f64.exp()) / total;
        assert!((found.mean_kld - expected).abs() < 1e-9, "{found:?}");
    }

    #[test]
    fn ties_are_no_disagreement_and_what_is_no_number_never_agrees() {
        let reference = logits(&[(7, [0.0, 2.0, 1.999])]);
        assert_eq!(compare(&reference, &logits(&[(7, [0.0, 1.999, 2.0])]), 1).top1, 1.0);
        let wrong = compare(&reference, &logits(&[(7, [f32::NAN, 2.0, 1.999])]), 1);
        assert!(wrong.mean_kld.is_nan() && judge(&numeric(), &wrong).is_err(), "{wrong:?}");
        let none = compare(&reference, &logits(&[(8, [0.0, 2.0, 1.999])]), 0);
        assert!(judge(&numeric(), &none).is_err() && judge(&Chosen::default(), &none).is_err(), "{none:?}");
    }

    fn numeric() -> Chosen {
        Chosen { repack: Some(false), ..Chosen::default() }
    }

    #[test]
    fn what_changes_no_numbers_must_give_the_same_tokens_and_the_rest_stay_near() {
        let found = |mean_kld, top1, equal| OutputComparison {
            positions: 80,
            mean_kld,
            top1,
            greedy: 16,
            equal,
            rounding: None,
        };
        let rough = |found: OutputComparison, mean_kld, top1| OutputComparison {
            rounding: Some(Rounding { mean_kld, top1 }),
            ..found
        };
        let lossy = Chosen { type_k: Some("q8_0".to_string()), ..Chosen::default() };
        let plain = Chosen { poll: Some(0), ..Chosen::default() };
        let cases = [
            (&plain, found(0.0, 1.0, 16), true),
            (&plain, found(0.0, 1.0, 15), false),
            (&plain, found(f64::NAN, 1.0, 16), false),
            (&numeric(), found(1e-6, 1.0, 15), true),
            (&numeric(), found(1e-3, 1.0, 16), true),
            (&numeric(), found(1e-3, 1.0, 15), false),
            (&numeric(), found(1e-2, 1.0, 16), false),
            (&numeric(), found(1e-6, 0.9, 16), false),
            (&numeric(), rough(found(6e-3, 0.93, 3), 8e-3, 0.95), true),
            (&numeric(), rough(found(9e-3, 0.93, 3), 8e-3, 0.95), false),
            (&numeric(), rough(found(6e-3, 0.85, 3), 8e-3, 0.95), false),
            (&numeric(), rough(found(1e-3, 1.0, 3), f64::NAN, 0.0), false),
            (&numeric(), rough(found(1e-6, 1.0, 3), 0.0, 1.0), true),
            // This candidate does not change the order of sums, so rounding cannot explain the difference.
            (&plain, rough(found(1e-3, 1.0, 15), 8e-3, 0.95), false),
            (&lossy, found(1e-3, 0.98, 3), true),
            (&lossy, found(1e-1, 0.98, 3), false),
        ];
        for (candidate, found, passes) in cases {
            assert_eq!(judge(candidate, &found).is_ok(), passes, "{candidate:?} {found:?}");
        }
    }
}
