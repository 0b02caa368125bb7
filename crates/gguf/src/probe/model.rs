//! Shapes of the probes, and the types of their matrices.

use super::Probe;
use super::blocks::{self as b, Recipe};
use crate::write::{Meta, TensorSpec};

/// Scaled-down shape of an architecture of llama.cpp.
pub(super) struct ProbeShape {
    pub(super) architecture: &'static str,
    pub(super) vocabulary: u32,
    pub(super) embedding: u32,
    pub(super) heads: u32,
    pub(super) kv_heads: u32,
    pub(super) head: u32,
    /// Width of the feed-forward network, or of one expert.
    pub(super) feed_forward: u32,
    /// Number of experts. Every token uses all experts, because a choice among experts could depend on a rounding
    /// error.
    pub(super) experts: u32,
    /// Seed of the text. Of the first 24 seeds, this seed gives the text with the fewest positions where two tokens
    /// are nearly equally likely.
    pub(super) text: u64,
    /// True if q, k and v have biases.
    biases: bool,
    /// True if q and k have norms.
    qk_norms: bool,
    embedding_type: Recipe,
    /// Type of the output matrix: half or single precision, because quantising the last activations would turn every
    /// rounding error into a step.
    output_type: Recipe,
    /// Types of each layer's matrices: q, k, v, attention output, gate, up, down.
    layers: [[Recipe; 7]; 2],
}

/// Shape with an odd vocabulary size: the output matrix cannot be repacked, and its last tile is incomplete for every
/// tile size.
const LLAMA: ProbeShape = ProbeShape {
    architecture: "llama",
    vocabulary: 127,
    embedding: 256,
    heads: 4,
    kv_heads: 2,
    head: 64,
    feed_forward: 768,
    experts: 0,
    text: 17,
    biases: false,
    qk_norms: false,
    embedding_type: b::Q4_K,
    output_type: b::F16,
    layers: [
        [b::Q4_K, b::Q5_K, b::Q6_K, b::Q4_K, b::Q4_K, b::Q3_K, b::Q6_K],
        [b::Q8_0, b::F16, b::BF16, b::Q5_0, b::Q4_0, b::IQ4_NL, b::Q2_K],
    ],
};

/// Shape with rows of two and three superblocks, and a vocabulary divisible by 8 but not by 16.
const QWEN2: ProbeShape = ProbeShape {
    architecture: "qwen2",
    vocabulary: 120,
    embedding: 512,
    heads: 4,
    kv_heads: 1,
    head: 128,
    feed_forward: 768,
    experts: 0,
    text: 17,
    biases: true,
    qk_norms: false,
    embedding_type: b::Q8_0,
    output_type: b::F32,
    layers: [
        [b::Q4_0, b::Q8_0, b::Q4_1, b::Q5_1, b::IQ4_XS, b::Q5_K, b::Q4_K],
        [b::Q6_K, b::IQ3_S, b::IQ3_XXS, b::IQ2_S, b::Q2_K, b::Q4_K, b::Q3_K],
    ],
};

const QWEN3MOE: ProbeShape = ProbeShape {
    architecture: "qwen3moe",
    vocabulary: 120,
    embedding: 256,
    heads: 4,
    kv_heads: 2,
    head: 64,
    feed_forward: 256,
    experts: 3,
    text: 9,
    biases: false,
    qk_norms: true,
    embedding_type: b::Q6_K,
    output_type: b::F32,
    layers: [
        [b::Q8_0, b::IQ2_XS, b::Q4_K, b::IQ2_XXS, b::Q4_K, b::Q4_0, b::Q6_K],
        [b::F32, b::IQ1_S, b::F16, b::BF16, b::MXFP4, b::Q8_0, b::Q5_K],
    ],
};

/// Root mean square of everything that the layers add to the residual stream, relative to the embedding. The value is
/// much smaller than in a trained model, because random layers amplify rounding errors; see docs/src/build/gate.md.
const LAYERS_TO_EMBEDDING: f64 = 0.2;
/// Standard deviation of attention scores.
const SCORE_STD: f64 = 1.0;
/// Root mean square of attention's weighted average of values, as in the larger synthetic models.
const ATTENTION_RMS: f64 = 0.3;
/// Root mean square of silu(z), as in the larger synthetic models.
const SILU_RMS: f64 = 0.6;
/// Standard deviation of the logits, which gives an entropy of about 2.5 bits for 120 tokens.
const LOGIT_STD: f64 = 3.5;
/// Spread of norms and biases.
const SPREAD: f64 = 0.1;

/// Tensor, and the distribution of its values.
pub(super) struct Tensor {
    pub(super) spec: TensorSpec,
    pub(super) recipe: Recipe,
    pub(super) mean: f64,
    pub(super) std: f64,
}

impl Probe {
    pub(super) fn shape(self) -> &'static ProbeShape {
        match self {
            Self::Llama => &LLAMA,
            Self::Qwen2 => &QWEN2,
            Self::Qwen3Moe => &QWEN3MOE,
        }
    }
}

/// Returns the file's metadata. There is no tokenizer, because the gate uses token numbers.
pub(super) fn metadata(shape: &ProbeShape) -> Vec<(String, Meta)> {
    let a = shape.architecture;
    let text = |value: &str| Meta::String(value.into());
    let mut all = vec![
        ("general.architecture".to_string(), text(a)),
        ("general.type".into(), text("model")),
        ("general.name".into(), text("random blocks")),
        ("tokenizer.ggml.model".into(), text("none")),
        (format!("{a}.attention.layer_norm_rms_epsilon"), Meta::F32(1e-6)),
        (format!("{a}.rope.freq_base"), Meta::F32(10_000.0)),
    ];
    let numbers = [
        ("vocab_size", shape.vocabulary),
        ("context_length", super::CONTEXT),
        ("embedding_length", shape.embedding),
        ("block_count", shape.layers.len() as u32),
        ("feed_forward_length", shape.feed_forward),
        ("attention.head_count", shape.heads),
        ("attention.head_count_kv", shape.kv_heads),
        ("attention.key_length", shape.head),
        ("attention.value_length", shape.head),
        ("rope.dimension_count", shape.head),
    ];
    let experts = [
        ("expert_count", shape.experts),
        ("expert_used_count", shape.experts),
        ("expert_feed_forward_length", shape.feed_forward),
    ];
    let experts = experts.into_iter().filter(|_| shape.experts > 0);
    all.extend(numbers.into_iter().chain(experts).map(|(key, n)| (format!("{a}.{key}"), Meta::U32(n))));
    all
}

/// Returns the tensors in the order of the file.
pub(super) fn tensors(shape: &ProbeShape) -> Vec<Tensor> {
    let mut list = List(Vec::new());
    let (width, vocabulary) = (u64::from(shape.embedding), u64::from(shape.vocabulary));
    list.push("token_embd.weight", &[width, vocabulary], shape.embedding_type, 0.0, 1.0);
    list.push("output.weight", &[width, vocabulary], shape.output_type, 0.0, 1.0);
    let output_norm = LOGIT_STD / f64::from(shape.embedding).sqrt();
    list.norm("output_norm.weight", width, output_norm);
    let half_layers = 2.0 * shape.layers.len() as f64;
    let contribution = LAYERS_TO_EMBEDDING / half_layers.sqrt();
    for (index, types) in shape.layers.iter().enumerate() {
        list.attention(shape, index, types, contribution / ATTENTION_RMS);
        list.feed_forward(shape, index, types, contribution / SILU_RMS);
    }
    list.0
}

struct List(Vec<Tensor>);

impl List {
    fn push(&mut self, name: &str, dims: &[u64], recipe: Recipe, mean: f64, std: f64) {
        let spec = TensorSpec { name: name.into(), dims: dims.into(), kind: recipe.kind };
        self.0.push(Tensor { spec, recipe, mean, std });
    }

    /// Adds a matrix, or one matrix per expert, whose outputs are `gain` times as large as its inputs.
    fn linear(&mut self, name: String, dims: &[u64], recipe: Recipe, gain: f64) {
        self.push(&name, dims, recipe, 0.0, gain / (dims[0] as f64).sqrt());
    }

    fn norm(&mut self, name: &str, len: u64, mean: f64) {
        self.push(name, &[len], b::F32, mean, mean * SPREAD);
    }

    fn attention(&mut self, shape: &ProbeShape, layer: usize, types: &[Recipe; 7], gain: f64) {
        let width = u64::from(shape.embedding);
        let head = u64::from(shape.head);
        let (queries, keys) = (u64::from(shape.heads) * head, u64::from(shape.kv_heads) * head);
        let name = |part: &str| format!("blk.{layer}.{part}");
        // Scores are q·k / sqrt(head).
        let size = SCORE_STD.sqrt();
        self.norm(&name("attn_norm.weight"), width, 1.0);
        self.linear(name("attn_q.weight"), &[width, queries], types[0], size);
        self.linear(name("attn_k.weight"), &[width, keys], types[1], size);
        self.linear(name("attn_v.weight"), &[width, keys], types[2], 1.0);
        if shape.qk_norms {
            self.norm(&name("attn_q_norm.weight"), head, size);
            self.norm(&name("attn_k_norm.weight"), head, size);
        }
        if shape.biases {
            for (part, len) in [("attn_q.bias", queries), ("attn_k.bias", keys), ("attn_v.bias", keys)] {
                self.push(&name(part), &[len], b::F32, 0.0, SPREAD);
            }
        }
        self.linear(name("attn_output.weight"), &[queries, width], types[3], gain);
    }

    fn feed_forward(&mut self, shape: &ProbeShape, layer: usize, types: &[Recipe; 7], gain: f64) {
        let (width, inner) = (u64::from(shape.embedding), u64::from(shape.feed_forward));
        let experts = u64::from(shape.experts);
        let name = |part: &str| format!("blk.{layer}.{part}");
        self.norm(&name("ffn_norm.weight"), width, 1.0);
        if experts == 0 {
            self.linear(name("ffn_gate.weight"), &[width, inner], types[4], 1.0);
            self.linear(name("ffn_up.weight"), &[width, inner], types[5], 1.0);
            self.linear(name("ffn_down.weight"), &[inner, width], types[6], gain);
        } else {
            self.linear(name("ffn_gate_inp.weight"), &[width, experts], b::F32, 1.0);
            self.linear(name("ffn_gate_exps.weight"), &[width, inner, experts], types[4], 1.0);
            self.linear(name("ffn_up_exps.weight"), &[width, inner, experts], types[5], 1.0);
            self.linear(name("ffn_down_exps.weight"), &[inner, width, experts], types[6], gain);
        }
    }
}
