//! Sampling where the logits are computed: llama.cpp's backend samplers, so that a device sends a token in place of a row of
//! logits.

use std::ptr::NonNull;

use llama_sys as sys;

use super::{Context, SequenceId, Token};
use crate::error::{Error, Result};

/// The samplers that a context's device runs.
#[derive(Default)]
pub(super) struct DeviceSamplers {
    /// By sequence.
    live: Vec<Option<NonNull<sys::llama_sampler>>>,
    /// Whether the device was asked once, and cannot: every question makes llama.cpp plan its graphs anew.
    impossible: bool,
}

// SAFETY: plain data without ties to a thread; only the context, which is `Send`, uses it.
unsafe impl Send for DeviceSamplers {}

impl Drop for DeviceSamplers {
    fn drop(&mut self) {
        for sampler in self.live.drain(..).flatten() {
            // SAFETY: owned; the context that used it is gone, or does not use it any more.
            unsafe { sys::llama_sampler_free(sampler.as_ptr()) }
        }
    }
}

impl Context {
    /// Lets the device that computes the logits of `sequence` choose its tokens, those of the greatest logit, from the next
    /// evaluation on, or (`on` false) not any more. Says whether it does: not every device can.
    ///
    /// Where it does, rows of this sequence have no logits, and a batch may ask for one row of it. A change makes llama.cpp plan
    /// its graphs anew, which takes milliseconds.
    pub(crate) fn choose_on_device(&mut self, sequence: SequenceId, on: bool) -> Result<bool> {
        let at = sequence as usize;
        if self.chooses_on_device(sequence) == on
            // It is turned off all the same, where it was on before.
            || (on && self.device_samplers.impossible)
            || sequence >= self.sequences
        {
            return Ok(self.chooses_on_device(sequence));
        }
        let (err, err_size) = self.message.parts();
        if on {
            // SAFETY: live; the sampler is kept until the context does not use it.
            let sampler = unsafe {
                sys::anneal_device_sampler_set(
                    self.raw.as_ptr(),
                    sequence as sys::llama_seq_id,
                    err,
                    err_size,
                )
            };
            let why = self.message.text();
            let Some(sampler) = NonNull::new(sampler) else {
                self.device_samplers.impossible = true;
                return if why.is_empty() { Ok(false) } else { Err(Error::Sampler(why)) };
            };
            let samplers = &mut self.device_samplers.live;
            samplers.resize(samplers.len().max(at + 1), None);
            samplers[at] = Some(sampler);
            return Ok(true);
        }
        // SAFETY: live.
        let cleared = unsafe {
            sys::anneal_device_sampler_clear(self.raw.as_ptr(), sequence as sys::llama_seq_id, err, err_size)
        };
        if !cleared {
            return Err(Error::Sampler(self.message.text()));
        }
        if let Some(sampler) = self.device_samplers.live[at].take() {
            // SAFETY: owned, and the context does not use it any more.
            unsafe { sys::llama_sampler_free(sampler.as_ptr()) }
        }
        Ok(false)
    }

    /// Whether the device chooses the tokens of `sequence`.
    pub(crate) fn chooses_on_device(&self, sequence: SequenceId) -> bool {
        self.device_samplers.live.get(sequence as usize).is_some_and(Option::is_some)
    }

    /// The token that the device chose in output row `row` of the last call, of a sequence whose tokens it chooses; -1 is the
    /// last row.
    pub(crate) fn token_of_device(&mut self, row: i32) -> Result<Token> {
        let (err, err_size) = self.message.parts();
        // SAFETY: waits for the results; returns a number.
        let token = unsafe { sys::anneal_device_token(self.raw.as_ptr(), row, err, err_size) };
        match token >= 0 && token.cast_unsigned() < self.model.n_vocab() {
            true => Ok(token),
            // Its logits were not kept: there is nothing else to choose by.
            false => {
                Err(Error::Sampler(format!("the device chose no token in row {row} {}", self.message.text())))
            }
        }
    }
}
