//! Samplers of llama.cpp, applied to a row of logits.

use std::ffi::{CString, c_char};
use std::ptr::NonNull;

use llama_sys as sys;

use crate::error::{Error, Result};
use crate::message::Message;
use crate::model::Model;
use crate::sampling::{PARAMETERS, SamplingOptions};
use crate::token::Token;

/// Token that could have been chosen, with its logit and probability.
pub type Candidate = sys::llama_token_data;

/// Samplers for [`SamplingOptions`], without the additions of `Chain` in the crate `sampling`. The samplers work on
/// rows of logits and on bit masks of allowed tokens.
pub struct RawChain {
    raw: NonNull<sys::anneal_chain>,
    n_vocab: usize,
    message: Message,
}

// SAFETY: plain data that is not tied to a thread; it reads the model's vocabulary, which is thread-safe.
unsafe impl Send for RawChain {}

impl Drop for RawChain {
    fn drop(&mut self) {
        // SAFETY: owned.
        unsafe { sys::anneal_chain_free(self.raw.as_ptr()) }
    }
}

/// [`SamplingOptions`] in the format that the shim expects, with the data that they point to.
pub(super) struct ChainParams {
    raw: sys::anneal_chain_params,
    _breakers: Vec<CString>,
    _pointers: Vec<*const c_char>,
    _biases: Vec<sys::llama_logit_bias>,
    _numbers: Vec<sys::anneal_chain_number>,
}

impl ChainParams {
    /// Converts `options`, which must have been checked.
    pub(super) fn new(options: &SamplingOptions, seed: u32) -> Result<Self> {
        let c_text = |text: &str| {
            CString::new(text).map_err(|_| Error::Usage(format!("{text:?} contains a NUL byte: remove it")))
        };
        let breakers =
            options.dry_sequence_breakers.iter().map(|text| c_text(text)).collect::<Result<Vec<_>>>()?;
        let pointers: Vec<*const c_char> = breakers.iter().map(|text| text.as_ptr()).collect();
        let biases: Vec<sys::llama_logit_bias> = options
            .logit_bias
            .iter()
            .map(|bias| sys::llama_logit_bias { token: bias.token, bias: bias.bias })
            .collect();
        let numbers: Vec<sys::anneal_chain_number> = PARAMETERS
            .iter()
            .map(|parameter| sys::anneal_chain_number {
                name: parameter.c_name.as_ptr(),
                value: parameter.value(options),
            })
            .collect();
        let raw = sys::anneal_chain_params {
            numbers: numbers.as_ptr(),
            n_numbers: numbers.len(),
            seed,
            dry_breakers: pointers.as_ptr(),
            n_dry_breakers: pointers.len(),
            biases: biases.as_ptr(),
            n_biases: biases.len(),
        };
        Ok(ChainParams { raw, _breakers: breakers, _pointers: pointers, _biases: biases, _numbers: numbers })
    }

    /// Returns the parameters for a call of the shim, which copies what it needs.
    pub(super) fn raw(&self) -> &sys::anneal_chain_params {
        &self.raw
    }
}

impl RawChain {
    /// Creates a chain for `options`, which must have been checked and whose tokens must be in the vocabulary.
    /// `model` must outlive the chain: `Chain` of the crate `sampling` owns both.
    pub fn new(options: &SamplingOptions, seed: u32, model: &Model) -> Result<Self> {
        let params = ChainParams::new(options, seed)?;
        let mut message = Message::new();
        let (err, err_size) = message.parts();
        // SAFETY: `params` and everything it points to outlive the call, which copies what it needs.
        let raw = unsafe { sys::anneal_chain_new(model.vocab, params.raw(), err, err_size) };
        match NonNull::new(raw) {
            Some(raw) => Ok(RawChain { raw, n_vocab: model.n_vocab() as usize, message }),
            None => Err(Error::Sampler(message.text())),
        }
    }

    /// Chooses a token from `logits`, which contains one logit per token of the vocabulary. `mask` has a bit for each
    /// token; only tokens whose bit is set can be chosen.
    pub fn sample(&mut self, logits: &[f32], mask: Option<&[u32]>) -> Result<Token> {
        let words = self.n_vocab.div_ceil(32);
        if logits.len() != self.n_vocab || mask.is_some_and(|mask| mask.len() < words) {
            return Err(Error::Sampler(format!("got {} logits for {} tokens", logits.len(), self.n_vocab)));
        }
        let mask = mask.map_or(std::ptr::null(), <[u32]>::as_ptr);
        let mut token = 0;
        let (err, err_size) = self.message.parts();
        // SAFETY: reads as many logits and bits as the slices contain, which was checked; `token` outlives the call.
        let sampled = unsafe {
            sys::anneal_chain_sample(
                self.raw.as_ptr(),
                logits.as_ptr(),
                logits.len(),
                mask,
                &mut token,
                err,
                err_size,
            )
        };
        match sampled {
            true => Ok(token),
            false => Err(Error::Sampler(self.message.text())),
        }
    }

    /// Appends `token` to the text that the samplers see. `generated` is false for tokens of the prompt.
    pub fn accept(&mut self, token: Token, generated: bool) -> Result<()> {
        let (err, err_size) = self.message.parts();
        // SAFETY: live; any token is accepted.
        let accepted =
            unsafe { sys::anneal_chain_accept(self.raw.as_ptr(), token, generated, err, err_size) };
        match accepted {
            true => Ok(()),
            false => Err(Error::Sampler(self.message.text())),
        }
    }

    /// Returns the pointer for the shim. Only one thread may use the pointer at a time.
    pub(super) fn as_ptr(&mut self) -> *mut sys::anneal_chain {
        self.raw.as_ptr()
    }

    /// Returns the number of tokens of the text that the penalties consider.
    pub fn window(&self) -> usize {
        // SAFETY: reads a field.
        unsafe { sys::anneal_chain_window(self.raw.as_ptr()) }
    }

    /// True if the token with the largest logit is always chosen, regardless of the text.
    pub fn is_argmax(&self) -> bool {
        // SAFETY: reads fields.
        unsafe { sys::anneal_chain_is_argmax(self.raw.as_ptr()) }
    }

    /// Returns the candidates from which the last token was chosen.
    pub fn candidates(&self) -> &[Candidate] {
        let mut len = 0;
        // SAFETY: null, or as many candidates as the call states. They are valid until the next call that changes the
        // chain, which borrows the chain mutably.
        unsafe {
            let data = sys::anneal_chain_candidates(self.raw.as_ptr(), &mut len);
            if data.is_null() { &[] } else { std::slice::from_raw_parts(data, len) }
        }
    }
}
