//! Settings that make a loaded model differ from its file: adapters, and the RoPE scaling of its contexts.

use std::ptr::NonNull;

use llama_sys as sys;

use crate::error::{Error, Result};
use crate::message::{Message, c_path};
use crate::model::Model;
use crate::options::RopeScaling;
use crate::rope::Rope;
use crate::variant::Variant;

/// Parts of a [`Variant`] that a loaded model keeps.
#[derive(Default)]
pub(super) struct Applied {
    /// Loaded adapters; their scales are in `scales`. The adapters are registered in the model and freed with the
    /// model.
    pub(super) adapters: Vec<NonNull<sys::llama_adapter_lora>>,
    pub(super) scales: Vec<f32>,
    rope: Rope,
    /// Context length, in tokens, that the model was trained for. YaRN needs this value, because a context with YaRN
    /// changes the training context length that llama.cpp reports for the model.
    orig_ctx: u32,
}

impl Model {
    /// Loads the adapters of `variant`, which must have been checked. No other thread may use the model yet.
    ///
    /// # Errors
    /// [`Error::Adapter`] if llama.cpp cannot load an adapter.
    pub(super) fn apply(&mut self, variant: &Variant) -> Result<()> {
        for adapter in &variant.adapters {
            let file = c_path(&adapter.path)?;
            let mut message = Message::new();
            let (err, err_size) = message.parts();
            // SAFETY: the model is live and not shared yet; `file` and the buffer outlive the call.
            let raw = unsafe { sys::anneal_adapter_load(self.raw.as_ptr(), file.as_ptr(), err, err_size) };
            let failed = || Error::Adapter { path: adapter.path.clone(), why: message.text() };
            self.variant.adapters.push(NonNull::new(raw).ok_or_else(failed)?);
            self.variant.scales.push(adapter.scale);
        }
        self.variant.rope = variant.rope;
        let architecture = self.metadata("general.architecture").unwrap_or_default();
        let original = self.metadata(&format!("{architecture}.rope.scaling.original_context_length"));
        let original = original.and_then(|text| text.parse().ok()).filter(|tokens| *tokens > 0);
        self.variant.orig_ctx = original.unwrap_or_else(|| self.n_ctx_train());
        Ok(())
    }

    /// Writes the RoPE scaling into the parameters of a context.
    pub(super) fn put_rope(&self, params: &mut sys::llama_context_params) {
        let rope = &self.variant.rope;
        if let Some(scaling) = rope.scaling {
            params.rope_scaling_type = match scaling {
                RopeScaling::None => sys::LLAMA_ROPE_SCALING_TYPE_NONE,
                RopeScaling::Linear => sys::LLAMA_ROPE_SCALING_TYPE_LINEAR,
                RopeScaling::Yarn => sys::LLAMA_ROPE_SCALING_TYPE_YARN,
            };
        }
        let put = |to: &mut f32, value: Option<f32>| *to = value.unwrap_or(*to);
        put(&mut params.rope_freq_base, rope.freq_base);
        put(&mut params.rope_freq_scale, rope.factor());
        put(&mut params.yarn_ext_factor, rope.yarn_ext_factor);
        put(&mut params.yarn_attn_factor, rope.yarn_attn_factor);
        put(&mut params.yarn_beta_fast, rope.yarn_beta_fast);
        put(&mut params.yarn_beta_slow, rope.yarn_beta_slow);
        // The values are always set, even to the model's own, because llama.cpp's default is the value of the
        // previous context.
        if !rope.is_the_models() {
            params.yarn_orig_ctx = rope.yarn_orig_ctx.unwrap_or(self.variant.orig_ctx);
        }
    }
}
