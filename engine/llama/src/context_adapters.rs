//! Application of a model's adapters in a context.

use llama_sys as sys;

use crate::context::Context;
use crate::error::{Error, Result};

impl Context {
    /// Applies the adapters of the model to this context.
    ///
    /// # Errors
    /// [`Error::Context`] if llama.cpp cannot apply an adapter.
    pub(super) fn adapt(&mut self) -> Result<()> {
        let variant = &self.model.variant;
        if variant.adapters.is_empty() {
            return Ok(());
        }
        let mut adapters: Vec<_> = variant.adapters.iter().map(|adapter| adapter.as_ptr()).collect();
        let mut scales = variant.scales.clone();
        let (err, err_size) = self.message.parts();
        // SAFETY: both arrays have the stated length and are only read. The adapters live as long as the model, and
        // the context holds the model.
        let taken = unsafe {
            sys::anneal_adapters_set(
                self.raw.as_ptr(),
                adapters.as_mut_ptr(),
                adapters.len(),
                scales.as_mut_ptr(),
                err,
                err_size,
            )
        };
        match taken {
            true => Ok(()),
            false => Err(Error::Context {
                n_ctx: self.n_ctx(),
                why: format!("its adapters: {}", self.message.text()),
            }),
        }
    }
}
