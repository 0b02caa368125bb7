//! Names of the model shapes, and types of the matrices.

use std::fmt;
use std::str::FromStr;

use crate::ggml_type::GgmlType;

/// Shape of a generated model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preset {
    /// Model of a few megabytes, for tests: llama, 4 layers, 256 wide, 2,048 tokens, a separate output matrix.
    Tiny,
    /// Model of tens of megabytes, for training profiles: llama, 4 layers, 512 wide, 16,384 tokens, a separate output
    /// matrix.
    SmallLlama,
    /// Same size as `SmallLlama`, with the architecture qwen2: biases, tied embeddings, a different pre-tokenizer.
    SmallQwen2,
    /// Qwen2.5-1.5B: qwen2, 28 layers, 1,536 wide, 151,936 tokens, tied embeddings, biases. 3.1 GB as F16.
    Qwen2_5_1_5B,
    /// Llama-3.2-1B: llama, 16 layers, 2,048 wide, 128,256 tokens, tied embeddings. 2.5 GB as F16.
    Llama1B,
    /// Llama-3.2-1B truncated to 4 layers, for benchmarks that run often: real widths, which determine the speed. 1.0
    /// GB as F16.
    Llama1B4L,
    /// Qwen2.5-1.5B truncated to 4 layers, for benchmarks that run often. 0.8 GB as F16.
    Qwen2_5_1_5B4L,
    /// Dimensions of Granite 3.0 1B A400M in qwen3moe's graph: 24 layers, 1,024 wide, 8 of 32 experts, 49,152 tokens,
    /// tied embeddings. 2.7 GB as F16.
    Moe1B,
    /// Mixture of experts of a few megabytes: qwen3moe, 3 layers, 256 wide, 2 of 8 experts, a separate output matrix.
    MoeTiny,
    /// Model of a few megabytes with a sliding window: gemma3, 6 layers, 256 wide, a window of 128 positions in five
    /// layers.
    SwaTiny,
    /// Model of a few megabytes with a recurrent state in four of six layers: granitehybrid, 256 wide, attention in the
    /// others.
    HybridTiny,
    /// Model of a few megabytes with a recurrent state and without attention: mamba2, 6 layers, 256 wide.
    RecurrentTiny,
    /// Model of a few megabytes, for embeddings only: bert, 3 layers, 256 wide, 512 positions.
    BertTiny,
    /// `BertTiny` with a head that scores pairs of texts: a reranker.
    RankTiny,
    /// `Tiny` with fill-in-the-middle tokens.
    FimTiny,
}

impl Preset {
    /// Returns all presets, the smallest first.
    pub fn all() -> [Self; 15] {
        [
            Self::Tiny,
            Self::MoeTiny,
            Self::BertTiny,
            Self::RankTiny,
            Self::FimTiny,
            Self::SwaTiny,
            Self::HybridTiny,
            Self::RecurrentTiny,
            Self::SmallQwen2,
            Self::SmallLlama,
            Self::Qwen2_5_1_5B4L,
            Self::Llama1B4L,
            Self::Llama1B,
            Self::Moe1B,
            Self::Qwen2_5_1_5B,
        ]
    }

    /// Returns the preset's command-line name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tiny => "tiny",
            Self::SmallLlama => "small-llama",
            Self::SmallQwen2 => "small-qwen2",
            Self::Qwen2_5_1_5B => "qwen2.5-1.5b",
            Self::Llama1B => "llama-1b",
            Self::Llama1B4L => "llama-1b-4l",
            Self::Qwen2_5_1_5B4L => "qwen2.5-1.5b-4l",
            Self::Moe1B => "moe-1b",
            Self::MoeTiny => "moe-tiny",
            Self::SwaTiny => "swa-tiny",
            Self::HybridTiny => "hybrid-tiny",
            Self::RecurrentTiny => "recurrent-tiny",
            Self::BertTiny => "bert-tiny",
            Self::RankTiny => "rank-tiny",
            Self::FimTiny => "fim-tiny",
        }
    }
}

impl fmt::Display for Preset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Preset {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::all().into_iter().find(|preset| preset.name() == text).ok_or_else(|| {
            let names = Self::all().map(Self::name).join(", ");
            format!("unknown preset {text:?}\nhint: use one of {names}")
        })
    }
}

/// Type of the matrices in the file. Norms, biases and routers are always F32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// Half precision, the usual input of quantisers.
    #[default]
    F16,
    /// Single precision.
    F32,
}

impl Precision {
    pub(super) fn ggml_type(self) -> GgmlType {
        match self {
            Self::F16 => GgmlType::F16,
            Self::F32 => GgmlType::F32,
        }
    }

    /// Value of `general.file_type`, from `enum llama_ftype`.
    pub(super) fn file_type(self) -> u32 {
        match self {
            Self::F16 => 1,
            Self::F32 => 0,
        }
    }
}
