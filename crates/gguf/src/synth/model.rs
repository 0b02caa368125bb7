//! Metadata and tensors of a model, with the distribution of each tensor's weights.
//!
//! # Scales
//!
//! Weights are drawn so that a random model resembles a trained model in the properties that matter to a test or a
//! benchmark. Its logits are peaked, its text does not loop immediately, and every layer contributes, so that a wrong
//! kernel changes tokens.
//!
//! - Embedding rows have unit variance, and a matrix has variance 1 / (inputs). Activations therefore stay near 1,
//!   and the scales of quantised blocks stay far from the smallest half-precision numbers.
//! - Each half layer adds the same amount to the residual stream, in total [`layers_to_embedding`] times the
//!   embedding.
//! - Queries and keys are scaled so that attention scores have a standard deviation of [`SCORE_STD`].
//! - The output norm's weights have random signs. With tied embeddings, the embedding is also the output matrix.
//!   Without random signs, the current token's own row would win, because this row is still in the residual stream.
//! - The output norm's size sets the spread of the logits; see [`logit_std`].

use random_weights::normal_quantile;

use super::preset::Precision;
use super::shape::{Architecture, Recurrence, Shape};
use super::vocabulary::Vocabulary;
use crate::ggml_type::GgmlType;
use crate::write::{Header, Meta, TensorSpec};

/// Root mean square of everything that the layers add to the residual stream, relative to the embedding, in a model
/// with a separate output matrix. See [`layers_to_embedding`].
const LAYERS_TO_EMBEDDING: f64 = 0.8;
/// Like [`LAYERS_TO_EMBEDDING`], for a model with tied embeddings.
const LAYERS_TO_TIED_EMBEDDING: f64 = 1.7;
/// Standard deviation of attention scores. Attention would be uniform at 0, and one-hot at 5 or more. About n /
/// e^(s²) of n positions contribute: about 50 of 512.
const SCORE_STD: f64 = 1.5;
/// Root mean square of attention's average over values of unit variance: sqrt(e^(s²) / n), for about 40 positions.
const ATTENTION_RMS: f64 = 0.5;
/// Root mean square of silu(z) for a standard normal z, by numerical integration.
const SILU_RMS: f64 = 0.5964;
/// Root mean square of the sum of experts: two of eight, weighted by the softmax of unit-variance scores.
const MIXTURE_RMS: f64 = 0.74;
/// Spread of norm weights and of biases around their mean.
const SPREAD: f64 = 0.1;
/// Size of the output rows of quiet tokens, which the model should not generate, relative to the other rows.
pub(super) const QUIET: f64 = 0.125;
/// Poisson-Dirichlet parameter that determines the spread of the logits; see [`logit_std`].
const PEAKEDNESS: f64 = 0.65;

/// Number of token types in bert.
const TOKEN_TYPES: u64 = 2;

/// Distribution of a tensor's values.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Fill {
    /// Normal distribution.
    Normal { mean: f64, std: f64 },
    /// Normal distribution with mean 0; the rows of quiet tokens are [`QUIET`] times as large.
    Tokens { std: f64 },
    /// Single value, with random signs.
    Signs(f64),
    /// Given values.
    Given(Vec<f32>),
}

/// Tensor of a model.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tensor {
    pub(super) spec: TensorSpec,
    pub(super) fill: Fill,
}

/// Returns the standard deviation of the logits over a vocabulary of `vocabulary` tokens that gives an entropy of
/// about 3 bits.
///
/// Logits of random weights are approximately independent normal numbers, as in Derrida's random energy model (Phys.
/// Rev. B 24, 2613, 1981). The critical spread s_c is the typical maximum of V standard normal numbers. Above it, a
/// handful of tokens share the probability. Their shares follow a Poisson-Dirichlet process with parameter m = s_c / s
/// (Ruelle 1987), with a mean entropy of ψ(1) − ψ(1 − m): 2.5 bits at m = 0.56, 3.5 at 0.65. The finite V reduces the
/// entropy by half a bit: in simulation, 2,048 tokens had 2.7 bits and 151,936 had 3.1. The formula below s_c, ln V −
/// s²/2 nats, is not useful, because it is only valid for much larger V.
fn logit_std(vocabulary: u32) -> f64 {
    -normal_quantile(1.0 / f64::from(vocabulary)) / PEAKEDNESS
}

/// Returns the file's metadata.
pub(super) fn metadata(
    shape: &Shape,
    name: &str,
    vocabulary: &Vocabulary,
    precision: Precision,
) -> Vec<(String, Meta)> {
    let architecture = shape.architecture.name();
    let mut metadata: Vec<(String, Meta)> = Vec::new();
    let mut put = |key: &str, value: Meta| metadata.push((key.replace("{a}", architecture), value));

    put("general.architecture", Meta::String(architecture.into()));
    put("general.type", Meta::String("model".into()));
    put("general.name", Meta::String(format!("{name} with random weights")));
    put("general.file_type", Meta::U32(precision.file_type()));
    put("general.quantization_version", Meta::U32(2));
    put("{a}.vocab_size", Meta::U32(shape.vocabulary));
    put("{a}.context_length", Meta::U32(shape.context));
    put("{a}.embedding_length", Meta::U32(shape.embedding));
    put("{a}.block_count", Meta::U32(shape.layers));
    if shape.architecture == Architecture::Mamba2 {
        put("{a}.feed_forward_length", Meta::U32(0));
        put("{a}.attention.head_count", Meta::U32(0));
        put("{a}.attention.layer_norm_rms_epsilon", Meta::F32(shape.rms_epsilon));
    } else {
        put("{a}.feed_forward_length", Meta::U32(shape.feed_forward));
        put("{a}.attention.head_count", Meta::U32(shape.heads));
        put("{a}.attention.head_count_kv", kv_heads(shape));
        put("{a}.attention.key_length", Meta::U32(shape.head));
        put("{a}.attention.value_length", Meta::U32(shape.head));
        put("{a}.attention.layer_norm_rms_epsilon", Meta::F32(shape.rms_epsilon));
        put("{a}.rope.dimension_count", Meta::U32(shape.head));
        put("{a}.rope.freq_base", Meta::F32(shape.rope_base));
    }
    if let Some(recurrence) = shape.recurrence {
        put("{a}.ssm.conv_kernel", Meta::U32(recurrence.kernel));
        put("{a}.ssm.inner_size", Meta::U32(2 * shape.embedding));
        put("{a}.ssm.state_size", Meta::U32(recurrence.state));
        put("{a}.ssm.time_step_rank", Meta::U32(recurrence.heads));
        put("{a}.ssm.group_count", Meta::U32(1));
    }
    if let Some(experts) = shape.experts {
        put("{a}.expert_count", Meta::U32(experts.count));
        put("{a}.expert_used_count", Meta::U32(experts.used));
        put("{a}.expert_feed_forward_length", Meta::U32(experts.feed_forward));
    }

    if let Some(window) = shape.window {
        put("{a}.attention.sliding_window", Meta::U32(window));
    }
    if shape.architecture == Architecture::Bert {
        put("{a}.attention.layer_norm_epsilon", Meta::F32(1e-12));
        put("{a}.attention.causal", Meta::Bool(false));
        // Values of `enum llama_pooling_type`: 4 is rank, 1 is mean.
        put("{a}.pooling_type", Meta::U32(if shape.ranks { 4 } else { 1 }));
        put("tokenizer.ggml.token_type_count", Meta::U32(TOKEN_TYPES as u32));
    }

    let tokenizer = shape.tokenizer;
    let control = shape.vocabulary - vocabulary.control as u32;
    // 1 is normal, 3 is control: `enum llama_token_type`.
    let kinds = (0..shape.vocabulary).map(|token| if token < control { 1 } else { 3 }).collect();
    put("tokenizer.ggml.model", Meta::String("gpt2".into()));
    put("tokenizer.ggml.pre", Meta::String(tokenizer.pre.into()));
    put("tokenizer.ggml.tokens", Meta::Strings(vocabulary.tokens.clone()));
    put("tokenizer.ggml.token_type", Meta::I32s(kinds));
    put("tokenizer.ggml.merges", Meta::Strings(vocabulary.merges.clone()));
    put("tokenizer.ggml.bos_token_id", Meta::U32(control + tokenizer.bos));
    put("tokenizer.ggml.eos_token_id", Meta::U32(control + tokenizer.eos));
    put("tokenizer.ggml.add_bos_token", Meta::Bool(tokenizer.add_bos));
    if shape.ranks {
        // The end token separates the two texts of a pair.
        metadata.push(("tokenizer.ggml.add_eos_token".into(), Meta::Bool(true)));
    }
    metadata
}

/// Returns the number of KV heads: one number for all layers, or one number per layer if some layers have a recurrent
/// state instead of KV heads.
fn kv_heads(shape: &Shape) -> Meta {
    if shape.recurrence.is_none() {
        return Meta::U32(shape.kv_heads);
    }
    let heads = |layer| if shape.is_recurrent(layer) { 0 } else { shape.kv_heads.cast_signed() };
    Meta::I32s((0..shape.layers).map(heads).collect())
}

/// Returns the tensors in the order of the file, with the names that llama.cpp requires (llama-arch.cpp,
/// `LLM_TENSOR_NAMES`).
pub(super) fn tensors(shape: &Shape, precision: Precision) -> Vec<Tensor> {
    let mut list = List { tensors: Vec::new(), matrix: precision.ggml_type() };
    if shape.architecture == Architecture::Bert {
        list.bert(shape);
        return list.tensors;
    }
    let embedding = u64::from(shape.embedding);
    let vocabulary = u64::from(shape.vocabulary);
    // The variance of logits is embedding × (row variance 1) × (norm weight)², for a normed stream of unit mean
    // square.
    let output_norm = logit_std(shape.vocabulary) / f64::from(shape.embedding).sqrt();

    // Gemma multiplies its embedding by the square root of its width.
    let gemma = shape.architecture == Architecture::Gemma3;
    let std = if gemma { 1.0 / f64::from(shape.embedding).sqrt() } else { 1.0 };
    list.matrix("token_embd.weight", &[embedding, vocabulary], Fill::Tokens { std });
    if !shape.tied {
        list.matrix("output.weight", &[embedding, vocabulary], Fill::Tokens { std: 1.0 });
    }
    list.vector("output_norm.weight", embedding, Fill::Signs(output_norm));
    if shape.rope_factors {
        let factors = llama3_rope_factors(shape);
        list.vector("rope_freqs.weight", factors.len() as u64, Fill::Given(factors));
    }
    for layer in 0..shape.layers {
        match shape.recurrence {
            Some(recurrence) if shape.is_recurrent(layer) => list.recurrence(shape, recurrence, layer),
            _ => list.attention(shape, layer),
        }
        if shape.architecture != Architecture::Mamba2 {
            list.feed_forward(shape, layer);
        }
    }
    list.tensors
}

/// Returns the whole header.
pub(super) fn header(metadata: Vec<(String, Meta)>, tensors: &[Tensor]) -> Header {
    Header { metadata, tensors: tensors.iter().map(|tensor| tensor.spec.clone()).collect() }
}

/// Returns the size of the layers' contribution relative to the embedding. With a larger contribution, a rounding error
/// grows more from layer to layer, which does not happen in trained models. The mean KL divergence of Q8_0 from F16
/// (tiny, with scores spread by 2) is 0.0013 at a ratio of 0.6, 0.0027 at 1, and 0.0071 at 2. With a tied embedding E,
/// however, the part of the logits that comes from the embedding itself is E' G E, which is symmetric. If token A
/// predicts token B, then B predicts A, and at ratios up to 1 the two tokens alternate forever.
fn layers_to_embedding(shape: &Shape) -> f64 {
    if shape.tied { LAYERS_TO_TIED_EMBEDDING } else { LAYERS_TO_EMBEDDING }
}

/// Returns the root mean square of each addition to the residual stream.
fn contribution(shape: &Shape) -> f64 {
    layers_to_embedding(shape) / f64::from(shape.additions() * shape.layers).sqrt()
}

struct List {
    tensors: Vec<Tensor>,
    /// Type of matrices; vectors are always F32, as in converted models.
    matrix: GgmlType,
}

impl List {
    fn push(&mut self, name: &str, dims: &[u64], kind: GgmlType, fill: Fill) {
        self.tensors.push(Tensor { spec: TensorSpec { name: name.into(), dims: dims.into(), kind }, fill });
    }

    fn matrix(&mut self, name: &str, dims: &[u64], fill: Fill) {
        self.push(name, dims, self.matrix, fill);
    }

    fn vector(&mut self, name: &str, len: u64, fill: Fill) {
        self.push(name, &[len], GgmlType::F32, fill);
    }

    /// Adds a matrix, or one matrix per expert, whose outputs are `gain` times as large as its inputs.
    fn linear(&mut self, name: &str, dims: &[u64], gain: f64) {
        let std = gain / (dims[0] as f64).sqrt();
        self.matrix(name, dims, Fill::Normal { mean: 0.0, std });
    }

    fn norm(&mut self, name: &str, len: u64, mean: f64) {
        self.vector(name, len, Fill::Normal { mean, std: mean * SPREAD });
    }

    fn attention(&mut self, shape: &Shape, layer: u32) {
        let embedding = u64::from(shape.embedding);
        let head = u64::from(shape.head);
        let queries = u64::from(shape.heads) * head;
        let keys = u64::from(shape.kv_heads) * head;
        let name = |part: &str| format!("blk.{layer}.{part}");
        // Scores are q·k / sqrt(head): a size r of both q and k gives them a standard deviation of r².
        let size = SCORE_STD.sqrt();
        let gemma = shape.architecture == Architecture::Gemma3;
        let normed = gemma || shape.architecture == Architecture::Qwen3Moe;
        let gain = if normed { 1.0 } else { size };

        self.norm(&name("attn_norm.weight"), embedding, 1.0);
        self.linear(&name("attn_q.weight"), &[embedding, queries], gain);
        self.linear(&name("attn_k.weight"), &[embedding, keys], gain);
        self.linear(&name("attn_v.weight"), &[embedding, keys], 1.0);
        if normed {
            self.norm(&name("attn_q_norm.weight"), head, size);
            self.norm(&name("attn_k_norm.weight"), head, size);
        }
        if shape.architecture == Architecture::Qwen2 {
            for (part, len) in [("attn_q.bias", queries), ("attn_k.bias", keys), ("attn_v.bias", keys)] {
                self.vector(&name(part), len, Fill::Normal { mean: 0.0, std: SPREAD });
            }
        }
        self.linear(&name("attn_output.weight"), &[queries, embedding], contribution(shape) / ATTENTION_RMS);
        if gemma {
            // The norm sets the size of a half layer's contribution.
            self.norm(&name("post_attention_norm.weight"), embedding, contribution(shape));
        }
    }

    /// Adds the tensors of a Mamba 2 layer. The decay per token, exp(A softplus(dt)), is 0.98 on average, so that
    /// distant tokens still influence the output. The factor D is small, because otherwise the current token would
    /// dominate the output.
    fn recurrence(&mut self, shape: &Shape, recurrence: Recurrence, layer: u32) {
        let embedding = u64::from(shape.embedding);
        let (heads, kernel) = (u64::from(recurrence.heads), u64::from(recurrence.kernel));
        let inner = 2 * embedding;
        let mixed = inner + 2 * u64::from(recurrence.state);
        let name = |part: &str| format!("blk.{layer}.{part}");
        let normal = |mean: f64, std: f64| Fill::Normal { mean, std };
        self.norm(&name("attn_norm.weight"), embedding, 1.0);
        self.linear(&name("ssm_in.weight"), &[embedding, inner + mixed + heads], 1.0);
        let window = normal(0.0, 1.0 / (kernel as f64).sqrt());
        self.push(&name("ssm_conv1d.weight"), &[kernel, mixed], GgmlType::F32, window);
        self.vector(&name("ssm_conv1d.bias"), mixed, normal(0.0, SPREAD));
        self.vector(&name("ssm_dt.bias"), heads, normal(-4.0, 0.5));
        self.push(&name("ssm_a"), &[1, heads], GgmlType::F32, normal(-1.0, SPREAD));
        self.push(&name("ssm_d"), &[1, heads], GgmlType::F32, normal(0.2, SPREAD / 10.0));
        self.push(&name("ssm_norm.weight"), &[inner, 1], GgmlType::F32, normal(1.0, SPREAD));
        self.linear(&name("ssm_out.weight"), &[inner, embedding], contribution(shape));
    }

    /// Adds all tensors of a bert model: every half layer is followed by a norm with a bias, and every matrix has a
    /// bias.
    fn bert(&mut self, shape: &Shape) {
        let (embedding, width) = (u64::from(shape.embedding), u64::from(shape.feed_forward));
        let plain = Fill::Normal { mean: 0.0, std: 1.0 };
        self.matrix(
            "token_embd.weight",
            &[embedding, u64::from(shape.vocabulary)],
            Fill::Tokens { std: 1.0 },
        );
        self.push("token_types.weight", &[embedding, TOKEN_TYPES], GgmlType::F32, plain.clone());
        self.push("position_embd.weight", &[embedding, u64::from(shape.context)], GgmlType::F32, plain);
        self.normed("token_embd_norm", embedding);
        for layer in 0..shape.layers {
            let name = |part: &str| format!("blk.{layer}.{part}");
            let size = SCORE_STD.sqrt();
            for (part, gain) in [("attn_q", size), ("attn_k", size), ("attn_v", 1.0), ("attn_output", 1.0)] {
                self.biased(&name(part), &[embedding, embedding], gain);
            }
            self.normed(&name("attn_output_norm"), embedding);
            self.biased(&name("ffn_up"), &[embedding, width], 1.0);
            self.biased(&name("ffn_down"), &[width, embedding], 1.0);
            self.normed(&name("layer_output_norm"), embedding);
        }
        if shape.ranks {
            self.biased("cls", &[embedding, embedding], 1.0);
            self.biased("cls.output", &[embedding, 1], 1.0);
        }
    }

    fn biased(&mut self, name: &str, dims: &[u64], gain: f64) {
        self.linear(&format!("{name}.weight"), dims, gain);
        self.vector(&format!("{name}.bias"), dims[1], Fill::Normal { mean: 0.0, std: SPREAD });
    }

    fn normed(&mut self, name: &str, len: u64) {
        self.norm(&format!("{name}.weight"), len, 1.0);
        self.vector(&format!("{name}.bias"), len, Fill::Normal { mean: 0.0, std: SPREAD });
    }

    fn feed_forward(&mut self, shape: &Shape, layer: u32) {
        let embedding = u64::from(shape.embedding);
        let name = |part: &str| format!("blk.{layer}.{part}");
        self.norm(&name("ffn_norm.weight"), embedding, 1.0);
        let down = contribution(shape) / SILU_RMS;
        match shape.experts {
            None => {
                let width = u64::from(shape.feed_forward);
                self.linear(&name("ffn_gate.weight"), &[embedding, width], 1.0);
                self.linear(&name("ffn_up.weight"), &[embedding, width], 1.0);
                self.linear(&name("ffn_down.weight"), &[width, embedding], down);
                if shape.architecture == Architecture::Gemma3 {
                    self.norm(&name("post_ffw_norm.weight"), embedding, contribution(shape));
                }
            }
            Some(experts) => {
                let (width, count) = (u64::from(experts.feed_forward), u64::from(experts.count));
                let std = 1.0 / f64::from(shape.embedding).sqrt();
                // The router is F32 in every mixture.
                let router = Fill::Normal { mean: 0.0, std };
                self.push(&name("ffn_gate_inp.weight"), &[embedding, count], GgmlType::F32, router);
                self.linear(&name("ffn_gate_exps.weight"), &[embedding, width, count], 1.0);
                self.linear(&name("ffn_up_exps.weight"), &[embedding, width, count], 1.0);
                self.linear(&name("ffn_down_exps.weight"), &[width, embedding, count], down / MIXTURE_RMS);
            }
        }
    }
}

/// Returns the factors by which Llama 3.2 divides each RoPE frequency. The factor is 1 for wavelengths under 8,192
/// / 4 positions, 32 for wavelengths over 8,192, and linear in the frequency in between (`Llama3` scaling in
/// convert_hf_to_gguf.py; the numbers are from config.json).
fn llama3_rope_factors(shape: &Shape) -> Vec<f32> {
    const FACTOR: f64 = 32.0;
    const LOW: f64 = 1.0;
    const HIGH: f64 = 4.0;
    const CONTEXT: f64 = 8192.0;
    (0..shape.head / 2)
        .map(|pair| {
            let frequency = f64::from(shape.rope_base).powf(-2.0 * f64::from(pair) / f64::from(shape.head));
            let turns = CONTEXT * frequency / std::f64::consts::TAU;
            let smooth = ((turns - LOW) / (HIGH - LOW)).clamp(0.0, 1.0);
            (1.0 / ((1.0 - smooth) / FACTOR + smooth)) as f32
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synth::preset::Preset;

    #[test]
    fn presets_have_the_real_models_parameter_counts() {
        // The first two numbers are the published numbers of parameters.
        let cases = [
            (Preset::Qwen2_5_1_5B, 1_543_714_304),
            (Preset::Llama1B, 1_235_814_432),
            // Terms: embedding and its norm; attention, router, three matrices of each expert, four norms of each
            // layer.
            (
                Preset::Moe1B,
                49_152 * 1024
                    + 1024
                    + 24 * (2 * 1024 * 1024
                        + 2 * 1024 * 512
                        + 32 * 1024
                        + 3 * 1024 * 512 * 32
                        + 2 * 1024
                        + 2 * 64),
            ),
        ];
        for (preset, parameters) in cases {
            let sum: u64 = tensors(preset.shape(), Precision::F16)
                .iter()
                .map(|tensor| tensor.spec.dims.iter().product::<u64>())
                .sum();
            assert_eq!(sum, parameters, "{preset}");
        }
    }

    #[test]
    fn k_quants_fit_every_matrix() {
        for preset in Preset::all() {
            for tensor in tensors(preset.shape(), Precision::F16) {
                let spec = &tensor.spec;
                // The quantiser does not change Mamba's F32 tensors.
                let is_small = spec.kind == GgmlType::F32 && spec.name.contains(".ssm_");
                let fits = spec.dims.len() == 1 || spec.dims[0] % 256 == 0;
                assert!(fits || is_small, "{preset}: {}", spec.name);
            }
        }
    }

    #[test]
    fn rope_factors_are_those_of_the_published_file() {
        let factors = llama3_rope_factors(Preset::Llama1B.shape());
        assert_eq!(factors.len(), 32);
        assert_eq!((factors[0], factors[31]), (1.0, 32.0));
        assert!(factors.windows(2).all(|pair| pair[0] <= pair[1]));
    }
}
