//! Flags of how a model differs from its file.

use std::path::Path;

use engine_core::settings::{Requested, Settings};
use llama::options::RopeScaling;
use llama::rope::Rope;
use llama::variant::{Adapter, Variant};

/// Adapters and RoPE scaling.
#[derive(clap::Args, Debug, Default)]
#[command(next_help_heading = "Model")]
pub struct VariantFlags {
    /// LoRA adapter in GGUF form, and by how much it counts; repeatable [default scale: 1]
    #[arg(long, value_name = "FILE[:SCALE]")]
    lora: Vec<Adapter>,
    /// How positions are scaled: none, linear or yarn [default: the model's]
    #[arg(long, value_name = "HOW", help_heading = "Long context")]
    rope_scaling: Option<RopeScaling>,
    /// By how much the context is longer than the one that the model was trained for
    #[arg(long, value_name = "X", help_heading = "Long context")]
    rope_scale: Option<f32>,
    /// Base of RoPE's frequencies [default: the model's]
    #[arg(long, value_name = "X", help_heading = "Long context")]
    rope_freq_base: Option<f32>,
    /// What positions are multiplied with: 1 / --rope-scale
    #[arg(long, value_name = "X", help_heading = "Long context")]
    rope_freq_scale: Option<f32>,
    /// YaRN: tokens that the model was trained for [default: the model's]
    #[arg(long, value_name = "N", help_heading = "Long context")]
    yarn_orig_ctx: Option<u32>,
    /// YaRN: how much is extrapolated, 0 to 1 [default: 1]
    #[arg(long, value_name = "X", help_heading = "Long context")]
    yarn_ext_factor: Option<f32>,
    /// YaRN: what attention is multiplied with; only with --yarn-ext-factor 0
    #[arg(long, value_name = "X", help_heading = "Long context")]
    yarn_attn_factor: Option<f32>,
    /// YaRN: turns above which a frequency stays as it is [default: 32]
    #[arg(long, value_name = "X", help_heading = "Long context")]
    yarn_beta_fast: Option<f32>,
    /// YaRN: turns below which a frequency is scaled in full [default: 1]
    #[arg(long, value_name = "X", help_heading = "Long context")]
    yarn_beta_slow: Option<f32>,
}

impl VariantFlags {
    /// Adds what these flags ask for.
    pub fn ask(&self, requested: &mut Requested) {
        requested.variant = Variant {
            adapters: self.lora.clone(),
            rope: Rope {
                scaling: self.rope_scaling,
                scale: self.rope_scale,
                freq_base: self.rope_freq_base,
                freq_scale: self.rope_freq_scale,
                yarn_orig_ctx: self.yarn_orig_ctx,
                yarn_ext_factor: self.yarn_ext_factor,
                yarn_attn_factor: self.yarn_attn_factor,
                yarn_beta_fast: self.yarn_beta_fast,
                yarn_beta_slow: self.yarn_beta_slow,
            },
        };
    }
}

/// Says where a context is longer than what the model at `path` was trained for.
pub fn warn_of_context(path: &Path, settings: &Settings) {
    if let Some(warning) = engine_core::settings::context_warning(path, settings) {
        llama::notice::warn(&warning);
    }
}
