//! Sampling on the device that computes the logits, with llama.cpp's backend samplers. The device then sends a token,
//! or fewer logits, instead of a whole row of logits.

use std::ffi::CStr;
use std::ptr::NonNull;

use llama_sys as sys;

use crate::context::Context;
use crate::error::{Error, Result};
use crate::sampler::{ChainParams, RawChain};
use crate::sampling::{SamplingOptions, SamplingPlan, SamplingStep};
use crate::token::{SequenceId, Token};

/// Samplers that the device of a context runs.
#[derive(Default)]
pub(super) struct DeviceSamplers {
    /// Samplers on the device, indexed by sequence.
    chains: Vec<Option<DeviceChain>>,
    /// Steps that the device does not support. They are stored, because each query makes llama.cpp plan its graphs
    /// again.
    lacks: Vec<SamplingStep>,
    /// True if the device supports no sampler at all.
    impossible: bool,
}

/// Samplers of one sequence.
struct DeviceChain {
    raw: NonNull<sys::llama_sampler>,
    /// Identifier of the text that owns the samplers.
    owner: u64,
    chooses: bool,
    /// Options of the samplers, without the seed. Samplers with equal options need no new graph.
    options: SamplingOptions,
    steps: Vec<SamplingStep>,
}

/// Request that a device sample a text.
pub struct DeviceAsked<'a> {
    /// Identifier of the text. Samplers of the same text stay on the device.
    pub owner: u64,
    /// Requested options, including the steps that run on the host.
    pub options: &'a SamplingOptions,
    /// Seed of the random number generator.
    pub seed: u32,
    /// Number of random numbers that have already been drawn.
    pub drawn: u64,
    /// Most recent tokens of the text: as many as the penalties consider.
    pub seen: &'a [Token],
}

// SAFETY: plain data that is not tied to a thread; only the context, which is `Send`, uses it.
unsafe impl Send for DeviceSamplers {}

impl Drop for DeviceSamplers {
    fn drop(&mut self) {
        for device_chain in self.chains.drain(..).flatten() {
            // SAFETY: owned; the context that used it is freed or has stopped using it.
            unsafe { sys::llama_sampler_free(device_chain.raw.as_ptr()) }
        }
    }
}

impl Context {
    /// Makes the device that computes the logits of `sequence` perform as many of the `asked` steps as possible,
    /// starting with the next evaluation. Returns the plan that the device follows. If the device supports none of
    /// the steps, the plan offloads nothing.
    ///
    /// While the device samples, rows of this sequence have no logits, and a batch may request at most one row of
    /// this sequence. Different samplers make llama.cpp plan its graphs again, which takes milliseconds. A different
    /// seed or text does not.
    pub fn sample_on_device(
        &mut self,
        sequence: SequenceId,
        asked: &DeviceAsked<'_>,
    ) -> Result<SamplingPlan> {
        let n_vocab = self.model.n_vocab();
        loop {
            let plan = SamplingPlan::new(asked.options, n_vocab, &self.device_samplers.lacks);
            if let Some(device_chain) =
                self.device_chain(sequence).filter(|device_chain| device_chain.owner == asked.owner)
                && device_chain.steps == plan.offloaded()
            {
                return Ok(plan);
            }
            if self.device_samplers.impossible || sequence >= self.sequences || plan.offloaded().is_empty() {
                self.sample_on_host(sequence)?;
                return Ok(plan.none());
            }
            match self.set_device_samplers(sequence, asked, &plan)? {
                StepAnswer::Done => return Ok(plan),
                StepAnswer::Lacks(step) => self.device_samplers.lacks.push(step),
                StepAnswer::Impossible => self.device_samplers.impossible = true,
            }
        }
    }

    fn set_device_samplers(
        &mut self,
        sequence: SequenceId,
        asked: &DeviceAsked<'_>,
        plan: &SamplingPlan,
    ) -> Result<StepAnswer> {
        let options = SamplingOptions { seed: None, constraint: None, ..plan.device(asked.options) };
        let params = ChainParams::new(&options, asked.seed)?;
        let end = match (plan.chooses(), plan.offloaded().contains(&SamplingStep::Temperature)) {
            (true, _) => sys::ANNEAL_DEVICE_CHOOSES,
            (false, true) => sys::ANNEAL_DEVICE_TEMPERS,
            (false, false) => sys::ANNEAL_DEVICE_CUTS,
        };
        let at = sequence as usize;
        let samplers = &mut self.device_samplers.chains;
        samplers.resize_with(samplers.len().max(at + 1), || None);
        let old = samplers[at].take();
        let same = old.as_ref().is_some_and(|old| old.options == options && old.steps == plan.offloaded());
        let old_raw = old.as_ref().map_or(std::ptr::null_mut(), |old| old.raw.as_ptr());
        let mut unsupported = c"".as_ptr();
        let (err, err_size) = self.message.parts();
        // SAFETY: live; the arguments outlive the call, which copies what it needs. The samplers are kept until the
        // context no longer uses them.
        let raw = unsafe {
            sys::anneal_device_chain_set(
                self.raw.as_ptr(),
                sequence as sys::llama_seq_id,
                old_raw,
                same,
                params.raw(),
                end,
                asked.drawn,
                asked.seen.as_ptr(),
                asked.seen.len(),
                &mut unsupported,
                err,
                err_size,
            )
        };
        let why = self.message.said();
        if raw != old_raw && !old_raw.is_null() {
            if raw.is_null() && why.is_some() {
                // If this call fails, the context may still use the old samplers.
                let (err, err_size) = self.message.parts();
                // SAFETY: live.
                unsafe {
                    sys::anneal_device_chain_clear(
                        self.raw.as_ptr(),
                        sequence as sys::llama_seq_id,
                        err,
                        err_size,
                    )
                };
            }
            // SAFETY: owned, and the context has stopped using them.
            unsafe { sys::llama_sampler_free(old_raw) }
        }
        let Some(raw) = NonNull::new(raw) else {
            if let Some(why) = why {
                return Err(Error::Sampler(why));
            }
            // SAFETY: a NUL-terminated text in static storage.
            let name = unsafe { CStr::from_ptr(unsupported) };
            return Ok(name
                .to_str()
                .ok()
                .and_then(SamplingStep::of_name)
                .map_or(StepAnswer::Impossible, StepAnswer::Lacks));
        };
        self.device_samplers.chains[at] = Some(DeviceChain {
            raw,
            owner: asked.owner,
            chooses: plan.chooses(),
            options,
            steps: plan.offloaded().to_vec(),
        });
        Ok(StepAnswer::Done)
    }

    /// Stops sampling on the device for `sequence`: its rows have logits again.
    pub fn sample_on_host(&mut self, sequence: SequenceId) -> Result<()> {
        let Some(device_chain) =
            self.device_samplers.chains.get_mut(sequence as usize).and_then(Option::take)
        else {
            return Ok(());
        };
        let (err, err_size) = self.message.parts();
        // SAFETY: live.
        let cleared = unsafe {
            sys::anneal_device_chain_clear(self.raw.as_ptr(), sequence as sys::llama_seq_id, err, err_size)
        };
        if !cleared {
            let why = self.message.text();
            self.device_samplers.chains[sequence as usize] = Some(device_chain);
            return Err(Error::Sampler(why));
        }
        // SAFETY: owned, and the context has stopped using it.
        unsafe { sys::llama_sampler_free(device_chain.raw.as_ptr()) }
        Ok(())
    }

    fn device_chain(&self, sequence: SequenceId) -> Option<&DeviceChain> {
        self.device_samplers.chains.get(sequence as usize)?.as_ref()
    }

    /// True if the device samples for `sequence`, whose rows then have no logits.
    pub fn samples_on_device(&self, sequence: SequenceId) -> bool {
        self.device_chain(sequence).is_some()
    }

    /// Returns `Some` if the device samples `sequence` for the text of `owner`. The value is true if the device also
    /// chooses the tokens, and false if it only filters the logits.
    pub fn device_chooses(&self, sequence: SequenceId, owner: u64) -> Option<bool> {
        self.device_chain(sequence)
            .filter(|device_chain| device_chain.owner == owner)
            .map(|device_chain| device_chain.chooses)
    }

    /// Passes `token`, the next token of the text of `sequence`, to the device's samplers.
    pub fn accept_on_device(&mut self, sequence: SequenceId, token: Token) -> Result<()> {
        let Some(raw) = self.device_chain(sequence).map(|device_chain| device_chain.raw) else {
            return Ok(());
        };
        let (err, err_size) = self.message.parts();
        // SAFETY: owned and live; any token is accepted.
        match unsafe { sys::anneal_device_chain_accept(raw.as_ptr(), token, err, err_size) } {
            true => Ok(()),
            false => Err(Error::Sampler(self.message.text())),
        }
    }

    /// Returns the token that the device chose in output row `row` of the last call; -1 is the last row. The row must
    /// belong to a sequence for which the device chooses the tokens.
    pub fn token_of_device(&mut self, row: i32) -> Result<Token> {
        let (err, err_size) = self.message.parts();
        // SAFETY: the call waits for the results and returns a number.
        let token = unsafe { sys::anneal_device_token(self.raw.as_ptr(), row, err, err_size) };
        match token >= 0 && token.cast_unsigned() < self.model.n_vocab() {
            true => Ok(token),
            // The logits of this row were not kept, so the host cannot choose a token instead.
            false => {
                let cause = self.message.said().unwrap_or_else(|| "llama.cpp returned no token".to_string());
                Err(Error::Sampler(format!("the device chose no token in row {row}: {cause}")))
            }
        }
    }

    /// Lets `chain` choose a token from the candidates that the device left in output row `row` of the last call.
    pub fn choose_from_left(&mut self, chain: &mut RawChain, row: i32) -> Result<Token> {
        let (err, err_size) = self.message.parts();
        let mut token = 0;
        // SAFETY: both are live; waits for the results and reads only as many values as exist.
        let chosen = unsafe {
            sys::anneal_chain_sample_left(chain.as_ptr(), self.raw.as_ptr(), row, &mut token, err, err_size)
        };
        match chosen {
            true => Ok(token),
            false => Err(Error::Sampler(self.message.text())),
        }
    }
}

/// Answer of a device to a request for samplers.
enum StepAnswer {
    Done,
    /// Step that the device does not support.
    Lacks(SamplingStep),
    /// The device supports no samplers.
    Impossible,
}
