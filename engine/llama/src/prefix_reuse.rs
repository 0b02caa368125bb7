//! Reuse of evaluated tokens by another text with the same beginning.

use llama_sys as sys;

use crate::model::Model;

/// Ways of truncating a model's memory to the beginning of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefixReuse {
    /// The memory can be truncated at any token.
    AnyToken,
    /// The memory can be truncated where a checkpoint was saved ([`save_checkpoint`](crate::Context::save_checkpoint)),
    /// if a sequence still contains the tokens before the checkpoint. This applies to models in which only some layers
    /// have a recurrent state.
    Checkpoints,
    /// The memory is only a state of constant size, so a checkpoint can be restored into any sequence.
    StateAlone,
    /// The memory cannot be truncated or copied, or it does not contain the tokens before the sliding window.
    Never,
}

impl PrefixReuse {
    /// True if prompts continue from checkpoints.
    pub fn needs_checkpoints(self) -> bool {
        matches!(self, PrefixReuse::Checkpoints | PrefixReuse::StateAlone)
    }
}

impl Model {
    /// Returns the way in which the memory can be truncated.
    pub fn prefix_reuse(&self) -> PrefixReuse {
        if self.has_plain_cache() {
            return PrefixReuse::AnyToken;
        }
        if self.can_take_back() {
            return PrefixReuse::Never;
        }
        // The memory of DeepSeek V4 fails an assertion when a part of a sequence is copied
        // (src/llama-kv-cache-dsv4.cpp, `seq_cp`; ggml 0.26.0).
        if self.metadata("general.architecture").as_deref() == Some("deepseek4") {
            return PrefixReuse::Never;
        }
        // SAFETY: reads a field.
        match unsafe { sys::llama_model_is_recurrent(self.raw.as_ptr()) } {
            true => PrefixReuse::StateAlone,
            false => PrefixReuse::Checkpoints,
        }
    }
}
