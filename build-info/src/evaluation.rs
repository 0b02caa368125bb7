//! Quality of a model's predictions on a text, and their distance from a reference model's predictions. The figures and
//! formulas match llama-perplexity.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Minimum number of positions for a standard error, as in llama-perplexity.
const FEWEST_POSITIONS: usize = 10;

/// Value with its standard error, assuming independent positions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// Estimated value.
    pub value: f64,
    /// Standard error; `None` if there are too few positions.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub error: Option<f64>,
}

impl Estimate {
    /// Multiplies value and error by `factor`, for example to get per cent.
    pub fn times(self, factor: f64) -> Self {
        Self { value: self.value * factor, error: self.error.map(|error| error * factor) }
    }
}

impl fmt::Display for Estimate {
    /// Uses the formatter's precision as the number of decimals, 4 by default.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = f.precision().unwrap_or(4);
        let text = match self.error {
            Some(error) => format!("{:.digits$} ± {error:.digits$}", self.value),
            None => format!("{:.digits$}", self.value),
        };
        // `pad` would truncate the text at the precision.
        match f.width() {
            Some(width) => write!(f, "{text:>width$}"),
            None => f.write_str(&text),
        }
    }
}

/// Predictions of a model and a reference for the next token at one position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair {
    /// Negative natural logarithm of the probability that the model gave the token.
    pub nll: f64,
    /// Negative natural logarithm of the probability that the reference gave the token.
    pub reference_nll: f64,
    /// KL divergence of the model from the reference, in nats.
    pub kld: f64,
    /// True if the model and the reference agree on the most likely token.
    pub same_top: bool,
}

impl Pair {
    /// Compares two rows of log-probabilities at one position. `next` is the token that follows: an index into both
    /// rows.
    pub fn of(reference: &[f64], model: &[f64], next: usize) -> Self {
        Self {
            nll: -model[next],
            reference_nll: -reference[next],
            kld: kld::divergence(reference, model),
            same_top: kld::most_likely(reference) == kld::most_likely(model),
        }
    }
}

/// Distance of a model from a reference.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Divergence {
    /// Perplexity of the reference.
    pub reference_perplexity: Estimate,
    /// Perplexity of the model divided by the perplexity of the reference.
    pub perplexity_ratio: Estimate,
    /// Mean KL divergence, in nats.
    pub mean_kld: Estimate,
    /// Median KL divergence, in nats.
    pub median_kld: f64,
    /// 99th percentile of the KL divergence, in nats.
    pub p99_kld: f64,
    /// Maximum KL divergence, in nats.
    pub max_kld: f64,
    /// Fraction of positions with the same most likely token.
    pub top1: Estimate,
    /// Mean change of the probability of the token that follows.
    pub mean_dp: Estimate,
    /// Root mean square change of the probability of the token that follows.
    pub rms_dp: Estimate,
}

/// Returns the perplexity of a text whose tokens have the negative log-likelihoods `nll`: the exponential of their
/// mean. The error is propagated from the error of the mean.
pub fn perplexity(nll: &[f64]) -> Estimate {
    let mean = mean(nll.iter().copied());
    let value = mean.value.exp();
    Estimate { value, error: mean.error.map(|error| error * value) }
}

/// Summarises the comparison of all positions; `None` if there are no positions.
pub fn divergence(pairs: &[Pair]) -> Option<Divergence> {
    if pairs.is_empty() {
        return None;
    }
    let mut klds: Vec<f64> = pairs.iter().map(|pair| pair.kld).collect();
    klds.sort_by(f64::total_cmp);
    let reference: Vec<f64> = pairs.iter().map(|pair| pair.reference_nll).collect();
    // ln(PPL / PPL of the reference) is the mean of the differences, so the error follows from the spread of the
    // differences, which already includes the covariance.
    let ratio = perplexity(&pairs.iter().map(|pair| pair.nll - pair.reference_nll).collect::<Vec<_>>());
    let change = |pair: &Pair| (-pair.nll).exp() - (-pair.reference_nll).exp();
    let squares = mean(pairs.iter().map(|pair| change(pair).powi(2)));
    let root = squares.value.sqrt();
    let rms_dp = Estimate {
        value: root,
        // d√x = dx / (2 √x). If nothing changed, the error is 0.
        error: squares.error.map(|error| if root > 0.0 { 0.5 * error / root } else { 0.0 }),
    };
    Some(Divergence {
        reference_perplexity: perplexity(&reference),
        perplexity_ratio: ratio,
        mean_kld: mean(klds.iter().copied()),
        median_kld: percentile(&klds, 0.5),
        p99_kld: percentile(&klds, 0.99),
        max_kld: percentile(&klds, 1.0),
        top1: mean(pairs.iter().map(|pair| f64::from(u8::from(pair.same_top)))),
        mean_dp: mean(pairs.iter().map(change)),
        rms_dp,
    })
}

/// Returns the mean with its standard error √(variance / (n - 1)).
fn mean(values: impl ExactSizeIterator<Item = f64> + Clone) -> Estimate {
    let count = values.len();
    let n = count as f64;
    let value = values.clone().sum::<f64>() / n;
    let variance = values.map(|x| (x - value).powi(2)).sum::<f64>() / n;
    Estimate { value, error: (count >= FEWEST_POSITIONS).then(|| (variance / (n - 1.0)).sqrt()) }
}

/// Returns the percentile `share` (0 to 1) of sorted values, interpolated linearly between two neighbours.
fn percentile(sorted: &[f64], share: f64) -> f64 {
    let place = (sorted.len() - 1) as f64 * share;
    let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    // Equal neighbours may both be infinite, and infinity times 0 is not a number.
    if below == above { below } else { below + (above - below) * place.fract() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(found: f64, expected: f64) -> bool {
        (found - expected).abs() < 1e-9
    }

    #[test]
    fn perplexity_is_that_computed_by_hand() {
        let nll = |p: &[f64]| p.iter().map(|p| -p.ln()).collect::<Vec<_>>();
        let cases: [(&[f64], f64); 4] =
            [(&[0.5, 0.5], 2.0), (&[0.5, 0.125], 4.0), (&[1.0], 1.0), (&[0.25, 1.0, 0.25, 1.0], 2.0)];
        for (p, expected) in cases {
            let found = perplexity(&nll(p));
            assert!(close(found.value, expected), "{p:?}: {found}");
            assert_eq!(found.error, None, "{p:?}");
        }
        // Half at 1/2, half at 1/8: mean ln 4, deviation ln 2; error for 16 positions: ln 2 / √15.
        let sixteen = nll(&[0.5, 0.125].repeat(8));
        let found = perplexity(&sixteen);
        assert!(close(found.value, 4.0), "{found}");
        assert!(close(found.error.unwrap(), 4.0 * 2f64.ln() / 15f64.sqrt()), "{found}");
    }

    #[test]
    fn a_model_is_at_no_distance_from_itself() {
        let row = [0.7f64.ln(), 0.2f64.ln(), 0.1f64.ln()];
        let pairs: Vec<Pair> = (0..12).map(|n| Pair::of(&row, &row, n % 3)).collect();
        let found = divergence(&pairs).unwrap();
        let zero = Estimate { value: 0.0, error: Some(0.0) };
        let one = Estimate { value: 1.0, error: Some(0.0) };
        assert_eq!((found.mean_kld, found.max_kld, found.mean_dp, found.rms_dp), (zero, 0.0, zero, zero));
        assert_eq!((found.top1, found.perplexity_ratio), (one, one));
        assert_eq!(divergence(&[]), None);
    }

    #[test]
    fn a_distance_is_that_computed_by_hand() {
        let (p, q) = ([0.75f64.ln(), 0.25f64.ln()], [0.5f64.ln(), 0.5f64.ln()]);
        let turned = [0.25f64.ln(), 0.75f64.ln()];
        let pairs: Vec<Pair> = (0..20).map(|n| Pair::of(&p, if n < 10 { &q } else { &turned }, 0)).collect();
        let found = divergence(&pairs).unwrap();
        let (near, far) = (0.75 * 1.5f64.ln() + 0.25 * 0.5f64.ln(), 0.5 * 3f64.ln());
        assert!(close(found.mean_kld.value, (near + far) / 2.0), "{found:?}");
        assert!(close(found.mean_kld.error.unwrap(), (far - near) / 2.0 / 19f64.sqrt()), "{found:?}");
        assert!(close(found.median_kld, (near + far) / 2.0) && close(found.p99_kld, far), "{found:?}");
        assert!(close(found.max_kld, far));
        // Of two equally likely tokens, the first counts as the most likely.
        assert!(close(found.top1.value, 0.5) && close(found.top1.error.unwrap(), 0.5 / 19f64.sqrt()));
        // The probability changes from 3/4 to 1/2 and to 1/4.
        assert!(close(found.mean_dp.value, -0.375), "{found:?}");
        assert!(close(found.rms_dp.value, ((0.0625 + 0.25) / 2.0f64).sqrt()), "{found:?}");
        assert!(close(found.perplexity_ratio.value, (0.75 / 0.125f64.sqrt()).abs()), "{found:?}");
        assert!(close(found.reference_perplexity.value, 4.0 / 3.0), "{found:?}");
    }

    #[test]
    fn what_is_no_number_shows_and_does_not_panic() {
        let (good, bad) = ([0.5f64.ln(); 2], [f64::NAN; 2]);
        let found = divergence(&[Pair::of(&good, &bad, 0), Pair::of(&good, &good, 1)]).unwrap();
        assert!(found.mean_kld.value.is_nan() && found.max_kld.is_nan(), "{found:?}");
        assert_eq!(format!("{:.2}", Estimate { value: 1.0, error: Some(0.126) }), "1.00 ± 0.13");
        assert_eq!(format!("[{:8.1}]", Estimate { value: 1.0, error: None }), "[     1.0]");
    }
}
