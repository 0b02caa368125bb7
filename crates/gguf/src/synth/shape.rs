//! Shapes of the presets. A preset that is named after a model has the shape of that model.

use super::preset::Preset;
use super::vocabulary::Control;

/// Architecture of llama.cpp that reads the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Architecture {
    Llama,
    Qwen2,
    Qwen3Moe,
    Gemma3,
    GraniteHybrid,
    Mamba2,
    Bert,
}

impl Architecture {
    /// Value of `general.architecture`, which is also the prefix of the size keys.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen2 => "qwen2",
            Self::Qwen3Moe => "qwen3moe",
            Self::Gemma3 => "gemma3",
            Self::GraniteHybrid => "granitehybrid",
            Self::Mamba2 => "mamba2",
            Self::Bert => "bert",
        }
    }
}

/// Mixture of experts that replaces the feed-forward network.
#[derive(Clone, Copy, Debug)]
pub(super) struct Experts {
    pub(super) count: u32,
    pub(super) used: u32,
    /// Width of one expert.
    pub(super) feed_forward: u32,
}

/// Recurrent layers of Mamba 2.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recurrence {
    /// Distance, in layers, between layers with attention. The other layers have a recurrent state. `None` if no layer
    /// has attention.
    pub(super) attention_every: Option<u32>,
    /// Width of the state of one channel.
    pub(super) state: u32,
    /// Number of heads. The heads divide the inner width, which is twice the embedding.
    pub(super) heads: u32,
    /// Width of the convolution, in tokens.
    pub(super) kernel: u32,
}

/// Tokenizer settings.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tokenizer {
    /// Value of `tokenizer.ggml.pre`: the rule by which text is split before merging.
    pub(super) pre: &'static str,
    pub(super) control: Control,
    /// Indices in `control` of the tokens that begin and end a text.
    pub(super) bos: u32,
    pub(super) eos: u32,
    pub(super) add_bos: bool,
}

/// Shape of a model without its weights.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) architecture: Architecture,
    pub(super) vocabulary: u32,
    pub(super) embedding: u32,
    pub(super) layers: u32,
    pub(super) heads: u32,
    pub(super) kv_heads: u32,
    pub(super) head: u32,
    /// Width of a dense feed-forward network.
    pub(super) feed_forward: u32,
    pub(super) experts: Option<Experts>,
    /// Number of positions in the window of sliding-window layers; every sixth layer sees all positions.
    pub(super) window: Option<u32>,
    pub(super) recurrence: Option<Recurrence>,
    pub(super) context: u32,
    pub(super) rope_base: f32,
    /// True if the file contains a tensor of RoPE factors, for Llama 3.1's RoPE scaling.
    pub(super) rope_factors: bool,
    pub(super) rms_epsilon: f32,
    /// True if the embedding is also the output matrix.
    pub(super) tied: bool,
    /// True if the model returns a score for a pair of texts instead of embeddings.
    pub(super) ranks: bool,
    pub(super) tokenizer: Tokenizer,
}

impl Shape {
    /// True if `layer` has a recurrent state instead of attention.
    pub(super) fn is_recurrent(&self, layer: u32) -> bool {
        self.recurrence.is_some_and(|recurrence| {
            recurrence.attention_every.is_none_or(|every| !(layer + 1).is_multiple_of(every))
        })
    }

    /// Number of additions to the residual stream in each layer.
    pub(super) fn additions(&self) -> u32 {
        if self.architecture == Architecture::Mamba2 { 1 } else { 2 }
    }
}

/// Qwen's tokenizer. The tiny presets also use it, because it is one of the few tokenizers whose detokeniser does not
/// change spaces.
const QWEN2: Tokenizer = Tokenizer {
    pre: "qwen2",
    control: &["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
    bos: 0,
    eos: 2,
    add_bos: false,
};

/// Qwen's tokenizer with fill-in-the-middle tokens.
const QWEN2_CODER: Tokenizer = Tokenizer {
    control: &[
        "<|endoftext|>",
        "<|im_start|>",
        "<|im_end|>",
        "<|fim_prefix|>",
        "<|fim_middle|>",
        "<|fim_suffix|>",
        "<|repo_name|>",
        "<|file_sep|>",
    ],
    ..QWEN2
};

const LLAMA3: Tokenizer = Tokenizer {
    pre: "llama-bpe",
    control: &[
        "<|begin_of_text|>",
        "<|end_of_text|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eot_id|>",
    ],
    bos: 0,
    eos: 4,
    add_bos: true,
};

/// Shape whose widths are multiples of 256, so that every K-quant keeps its type.
const TINY: Shape = Shape {
    architecture: Architecture::Llama,
    vocabulary: 2048,
    embedding: 256,
    layers: 4,
    heads: 4,
    kv_heads: 2,
    head: 64,
    feed_forward: 512,
    experts: None,
    window: None,
    recurrence: None,
    context: 4096,
    rope_base: 10_000.0,
    rope_factors: false,
    rms_epsilon: 1e-5,
    tied: false,
    ranks: false,
    tokenizer: QWEN2,
};

/// Shape from config.json of Qwen/Qwen2.5-1.5B.
const QWEN2_5_1_5B: Shape = Shape {
    architecture: Architecture::Qwen2,
    vocabulary: 151_936,
    embedding: 1536,
    layers: 28,
    heads: 12,
    kv_heads: 2,
    head: 128,
    feed_forward: 8960,
    experts: None,
    window: None,
    recurrence: None,
    context: 32_768,
    rope_base: 1_000_000.0,
    rope_factors: false,
    rms_epsilon: 1e-6,
    tied: true,
    ranks: false,
    tokenizer: QWEN2,
};

/// Shape from config.json of meta-llama/Llama-3.2-1B.
const LLAMA_1B: Shape = Shape {
    architecture: Architecture::Llama,
    vocabulary: 128_256,
    embedding: 2048,
    layers: 16,
    heads: 32,
    kv_heads: 8,
    head: 64,
    feed_forward: 8192,
    experts: None,
    window: None,
    recurrence: None,
    context: 131_072,
    rope_base: 500_000.0,
    rope_factors: true,
    rms_epsilon: 1e-5,
    tied: true,
    ranks: false,
    tokenizer: LLAMA3,
};

const QWEN2_5_1_5B_4L: Shape = Shape { layers: 4, ..QWEN2_5_1_5B };

const LLAMA_1B_4L: Shape = Shape { layers: 4, ..LLAMA_1B };

/// Shape from config.json of ibm-granite/granite-3.0-1b-a400m-base, with three fewer tokens in the vocabulary, a
/// context for long runs, and Qwen3's norms of queries and keys.
const MOE_1B: Shape = Shape {
    architecture: Architecture::Qwen3Moe,
    vocabulary: 49_152,
    embedding: 1024,
    layers: 24,
    heads: 16,
    kv_heads: 8,
    head: 64,
    experts: Some(Experts { count: 32, used: 8, feed_forward: 512 }),
    context: 32_768,
    rms_epsilon: 1e-6,
    tied: true,
    ..TINY
};

const MOE_TINY: Shape = Shape {
    architecture: Architecture::Qwen3Moe,
    layers: 3,
    experts: Some(Experts { count: 8, used: 2, feed_forward: 256 }),
    rms_epsilon: 1e-6,
    ..TINY
};

/// Shape with Gemma 3's attention: five of six layers have a sliding window.
const SWA_TINY: Shape = Shape { architecture: Architecture::Gemma3, layers: 6, window: Some(128), ..TINY };

const RECURRENCE: Recurrence = Recurrence { attention_every: None, state: 64, heads: 8, kernel: 4 };

/// Shape with Granite 4's layers: every third layer has attention, and the others have a state.
const HYBRID_TINY: Shape = Shape {
    architecture: Architecture::GraniteHybrid,
    layers: 6,
    recurrence: Some(Recurrence { attention_every: Some(3), ..RECURRENCE }),
    ..TINY
};

const RECURRENT_TINY: Shape =
    Shape { architecture: Architecture::Mamba2, layers: 6, recurrence: Some(RECURRENCE), ..TINY };

/// Shape of an embedding model: tokens attend in both directions, and no text is generated.
const BERT_TINY: Shape =
    Shape { architecture: Architecture::Bert, layers: 3, kv_heads: 4, context: 512, tied: true, ..TINY };

const RANK_TINY: Shape = Shape { ranks: true, ..BERT_TINY };

const FIM_TINY: Shape = Shape { tokenizer: QWEN2_CODER, ..TINY };

const SMALL_LLAMA: Shape = Shape {
    vocabulary: 16_384,
    embedding: 512,
    heads: 8,
    kv_heads: 2,
    feed_forward: 1536,
    tokenizer: LLAMA3,
    ..TINY
};

const SMALL_QWEN2: Shape = Shape {
    architecture: Architecture::Qwen2,
    rope_base: 1_000_000.0,
    rms_epsilon: 1e-6,
    tied: true,
    tokenizer: QWEN2,
    ..SMALL_LLAMA
};

impl Preset {
    pub(super) fn shape(self) -> &'static Shape {
        match self {
            Self::Tiny => &TINY,
            Self::SmallLlama => &SMALL_LLAMA,
            Self::SmallQwen2 => &SMALL_QWEN2,
            Self::Qwen2_5_1_5B => &QWEN2_5_1_5B,
            Self::Llama1B => &LLAMA_1B,
            Self::Llama1B4L => &LLAMA_1B_4L,
            Self::Qwen2_5_1_5B4L => &QWEN2_5_1_5B_4L,
            Self::Moe1B => &MOE_1B,
            Self::MoeTiny => &MOE_TINY,
            Self::SwaTiny => &SWA_TINY,
            Self::HybridTiny => &HYBRID_TINY,
            Self::RecurrentTiny => &RECURRENT_TINY,
            Self::BertTiny => &BERT_TINY,
            Self::RankTiny => &RANK_TINY,
            Self::FimTiny => &FIM_TINY,
        }
    }
}
