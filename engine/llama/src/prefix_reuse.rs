//! Reuse of evaluated tokens by another text with the same beginning.

use llama_sys as sys;

use crate::model::Model;

/// Way in which a model's memory can be cut to the beginning of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefixReuse {
    /// The memory can be cut after any token.
    AnyToken,
    /// The memory can be cut where a checkpoint was saved
    /// ([`save_checkpoint`](crate::Context::save_checkpoint)), if a sequence still contains the tokens before it. This is
    /// the case for models in which only some layers have a recurrent state.
    Checkpoints,
    /// The memory is only a state of constant size, so a checkpoint can be restored into any sequence.
    StateAlone,
    /// The memory cannot be cut or copied, or it does not contain the tokens behind sliding windows.
    Never,
}

impl Model {
    /// Returns the way in which the memory can be cut.
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
