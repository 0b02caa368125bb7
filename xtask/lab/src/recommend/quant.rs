//! Quantisations: the size of a model in each quantisation, and the recommended one.

use build_info::{Bytes, Host, Roofline};
use serde::Serialize;

use super::fit::{FitVerdict, Need, is_repacked, largest_context};
use super::kv;
use super::mixture::{self, Quant};
use super::model_facts::{ModelFacts, Tensor, sum};
use super::speed::decode_ceiling;

/// Model in one quantisation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Choice {
    /// Name of the quantisation for llama-quantize.
    pub quant: &'static str,
    /// Size of the weights.
    pub weights: Bytes,
    /// Average number of bits per weight.
    pub bits_per_weight: f64,
    /// Result of the memory check with the recommended context.
    pub verdict: FitVerdict,
    /// Upper bound on decode speed, in tokens per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decode: Option<f64>,
    /// Increase in perplexity that llama.cpp publishes for Llama-3-8B.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub perplexity_rise: Option<f64>,
    /// Fraction of the weights that the CPU backend repacks, 0 to 1.
    pub repacked_share: f64,
    /// Number of matrices that get another type, because their rows are not a whole number of blocks of the intended
    /// type.
    pub fallbacks: usize,
}

/// Recommended quantisation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Advice {
    /// Most precise quantisation that fits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub most_exact: Option<&'static str>,
    /// Usual quantisation if it fits, or else the largest smaller quantisation that fits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usual: Option<&'static str>,
    /// Recommendation in words.
    pub text: String,
    /// Disadvantages of the model's current types on this CPU.
    pub warnings: Vec<String>,
    /// Quantisations that were considered, starting with the largest.
    pub choices: Vec<Choice>,
}

/// Type that is published most often. For smaller types, the published quality loss grows quickly.
const USUAL: &str = "Q4_K_M";

/// Compares the quantisations of `model` on `host`.
pub fn advise(
    model: &ModelFacts,
    host: &Host,
    roofline: Option<&Roofline>,
    decode_threads: u32,
    need: &Need,
    n_ubatch: u32,
    usable: Bytes,
) -> Advice {
    let bandwidth = roofline.and_then(|roofline| roofline.at(decode_threads)).map(|rates| rates.read_bytes);
    let choice = |quant: &Quant| {
        let mixed = mixture::quantise(model, quant);
        let need = Need::of(&mixed.model, host, need.n_ctx, n_ubatch, kv::F16);
        let verdict = need.verdict(usable);
        // If weights are read from the disk, memory bandwidth does not limit the speed.
        let bandwidth = bandwidth.filter(|_| verdict == FitVerdict::Fits);
        Choice {
            quant: quant.name,
            weights: need.weights,
            bits_per_weight: mixed.model.bits_per_weight(),
            verdict,
            decode: bandwidth.and_then(|rate| decode_ceiling(rate, mixed.model.bytes_per_token.0, 0)),
            perplexity_rise: quant.perplexity_rise,
            repacked_share: need.repacked.0 as f64 / need.weights.0.max(1) as f64,
            fallbacks: mixed.fallbacks,
        }
    };
    let choices: Vec<Choice> = mixture::QUANTS.iter().map(choice).collect();
    let fits = |choice: &&Choice| choice.verdict == FitVerdict::Fits;
    let most_exact = choices.iter().find(fits).map(|choice| choice.quant);
    let from_usual = choices.iter().position(|choice| choice.quant == USUAL).unwrap_or(0);
    let usual = choices[from_usual..].iter().find(fits).map(|choice| choice.quant);
    let text = match most_exact.zip(usual) {
        Some((most_exact, usual)) => in_words(model, most_exact, usual, need.verdict(usable)),
        None => none_fits(model, host, need.n_ctx, n_ubatch, usable),
    };
    Advice { most_exact, usual, text, warnings: warnings(model, host, &choices), choices }
}

/// Returns the advice if no quantisation fits with a context of `n_ctx` tokens: a shorter context with the usual
/// quantisation or a smaller one, or else a smaller model.
fn none_fits(model: &ModelFacts, host: &Host, n_ctx: u32, n_ubatch: u32, usable: Bytes) -> String {
    let from_usual = mixture::QUANTS.iter().skip_while(|quant| quant.name != USUAL);
    let mut shorter = from_usual.filter_map(|quant| {
        let mixed = mixture::quantise(model, quant);
        let largest = largest_context(&mixed.model, host, n_ubatch, kv::F16, usable)?;
        Some((quant.name, largest))
    });
    match shorter.next() {
        Some((quant, largest)) => {
            format!(
                "no quantisation fits with a context of {n_ctx} tokens; {quant} fits with -c {largest} or \
                 less"
            )
        }
        None => "no quantisation of this model fits: use a smaller model".to_string(),
    }
}

fn in_words(model: &ModelFacts, most_exact: &str, usual: &str, verdict: FitVerdict) -> String {
    let mut text = if most_exact == usual {
        format!("only {usual} fits")
    } else {
        format!("{usual} for speed; {most_exact} is the most precise that fits")
    };
    if verdict > FitVerdict::Fits {
        text = format!("{} does not stay in memory; {text}", model.quantisation);
    } else if usual == model.quantisation {
        text = format!("keep {usual}; {most_exact} is the most precise that fits");
    }
    if usual != USUAL {
        text.push_str(&format!("; a smaller model is usually better than a type below {USUAL}"));
    }
    text
}

/// Returns the warnings about the types in the file, for the CPU's kernels and the model's shape.
fn warnings(model: &ModelFacts, host: &Host, choices: &[Choice]) -> Vec<String> {
    let mut warnings = Vec::new();
    let matrices = || model.tensors.iter().filter(|tensor| mixture::is_quantised_by_type(tensor));
    let odd = matrices().filter(|tensor| !tensor.row().is_multiple_of(256)).count();
    if odd > 0 {
        warnings.push(format!(
            "in {odd} of {} matrices, the row length is not a multiple of 256, so K-quants fall back to the \
             larger types Q4_0, Q5_0, Q5_1 or Q8_0; llama.cpp never repacks Q5_0 and Q5_1 for the \
             CPU",
            matrices().count()
        ));
    }
    let layers = || matrices().filter(|tensor| tensor.layer().is_some() && tensor.kind.block_elements() > 1);
    let all = sum(layers().map(Tensor::bytes));
    let rearranged = sum(layers().filter(|tensor| is_repacked(tensor, host)).map(Tensor::bytes));
    let best = choices.iter().filter(|choice| choice.perplexity_rise.is_some());
    let best = best.max_by(|a, b| a.repacked_share.total_cmp(&b.repacked_share));
    match best.filter(|_| rearranged < all / 2) {
        Some(best) if best.repacked_share > 0.0 => warnings.push(format!(
            "llama.cpp repacks only {:.0} % of the layers' quantised weights for this CPU, and uses general \
             kernels for the rest; try {}, which has the largest repacked share",
            100.0 * rearranged as f64 / all.max(1) as f64,
            best.quant
        )),
        Some(_) => warnings.push(
            "this CPU lacks the instruction sets (AVX2, or dot products on ARM) that llama.cpp's repacked \
             kernels need"
                .to_string(),
        ),
        None => {}
    }
    warnings
}
