//! Sampling where the logits are computed: llama.cpp's backend samplers, so that a device sends a token, or fewer logits, in
//! place of a row of logits.

use std::ffi::CStr;
use std::ptr::NonNull;

use llama_sys as sys;

use crate::context::Context;
use crate::error::{Error, Result};
use crate::sampler::{ChainParams, RawChain};
use crate::sampling::{SamplingOptions, SamplingPlan, SamplingStep};
use crate::token::{SequenceId, Token};

/// The samplers that a context's device runs.
#[derive(Default)]
pub(super) struct DeviceSamplers {
    /// By sequence.
    runtime_host: Vec<Option<RuntimeHost>>,
    /// What the device was asked for once, and has not: every question makes llama.cpp plan its graphs anew.
    lacks: Vec<SamplingStep>,
    /// Whether it has nothing at all.
    impossible: bool,
}

/// The samplers of a sequence.
struct RuntimeHost {
    raw: NonNull<sys::llama_sampler>,
    /// Whose they are.
    owner: u64,
    chooses: bool,
    /// What they were made of, without a seed: others of the same need no other graph.
    options: SamplingOptions,
    steps: Vec<SamplingStep>,
}

/// What a device is to do for a text.
pub struct DeviceAsked<'a> {
    /// Whose text it is: where its samplers are there, they stay.
    pub owner: u64,
    /// What is asked for, with what the host does.
    pub options: &'a SamplingOptions,
    /// Of random numbers.
    pub seed: u32,
    /// How many of them were drawn already.
    pub drawn: u64,
    /// The last tokens of the text, as many as penalties look at.
    pub seen: &'a [Token],
}

// SAFETY: plain data without ties to a thread; only the context, which is `Send`, uses it.
unsafe impl Send for DeviceSamplers {}

impl Drop for DeviceSamplers {
    fn drop(&mut self) {
        for runtime_host in self.runtime_host.drain(..).flatten() {
            // SAFETY: owned; the context that used it is gone, or does not use it any more.
            unsafe { sys::llama_sampler_free(runtime_host.raw.as_ptr()) }
        }
    }
}

impl Context {
    /// Lets the device that computes the logits of `sequence` do what it can of what `asked` says, from the next evaluation on.
    /// Returns the plan that it follows, of which nothing is offloaded where the device can nothing of it.
    ///
    /// Where it does, rows of this sequence have no logits of their own, and a batch may ask for one row of it. Other samplers
    /// make llama.cpp plan its graphs anew, which takes milliseconds; another seed or another text do not.
    pub fn sample_on_device(
        &mut self,
        sequence: SequenceId,
        asked: &DeviceAsked<'_>,
    ) -> Result<SamplingPlan> {
        let n_vocab = self.model.n_vocab();
        loop {
            let plan = SamplingPlan::new(asked.options, n_vocab, &self.device_samplers.lacks);
            if let Some(runtime_host) =
                self.runtime_host(sequence).filter(|runtime_host| runtime_host.owner == asked.owner)
                && runtime_host.steps == plan.offloaded()
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
        let samplers = &mut self.device_samplers.runtime_host;
        samplers.resize_with(samplers.len().max(at + 1), || None);
        let old = samplers[at].take();
        let same = old.as_ref().is_some_and(|old| old.options == options && old.steps == plan.offloaded());
        let old_raw = old.as_ref().map_or(std::ptr::null_mut(), |old| old.raw.as_ptr());
        let mut unsupported = c"".as_ptr();
        let (err, err_size) = self.message.parts();
        // SAFETY: live; what is given outlives the call, which copies what it keeps. The samplers are kept until the context
        // does not use them.
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
                // Where it failed, the old ones may be in use still.
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
            // SAFETY: owned, and the context does not use them any more.
            unsafe { sys::llama_sampler_free(old_raw) }
        }
        let Some(raw) = NonNull::new(raw) else {
            if let Some(why) = why {
                return Err(Error::Sampler(why));
            }
            // SAFETY: a text of static storage, with its end.
            let name = unsafe { CStr::from_ptr(unsupported) };
            return Ok(name
                .to_str()
                .ok()
                .and_then(SamplingStep::of_name)
                .map_or(StepAnswer::Impossible, StepAnswer::Lacks));
        };
        self.device_samplers.runtime_host[at] = Some(RuntimeHost {
            raw,
            owner: asked.owner,
            chooses: plan.chooses(),
            options,
            steps: plan.offloaded().to_vec(),
        });
        Ok(StepAnswer::Done)
    }

    /// Lets the device do nothing for `sequence` any more: its rows have logits again.
    pub fn sample_on_host(&mut self, sequence: SequenceId) -> Result<()> {
        let Some(runtime_host) =
            self.device_samplers.runtime_host.get_mut(sequence as usize).and_then(Option::take)
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
            self.device_samplers.runtime_host[sequence as usize] = Some(runtime_host);
            return Err(Error::Sampler(why));
        }
        // SAFETY: owned, and the context does not use it any more.
        unsafe { sys::llama_sampler_free(runtime_host.raw.as_ptr()) }
        Ok(())
    }

    fn runtime_host(&self, sequence: SequenceId) -> Option<&RuntimeHost> {
        self.device_samplers.runtime_host.get(sequence as usize)?.as_ref()
    }

    /// Whether the device does something for `sequence`, whose rows have no logits of their own then.
    pub fn samples_on_device(&self, sequence: SequenceId) -> bool {
        self.runtime_host(sequence).is_some()
    }

    /// Whether that is for the text of `owner`, and whether it chooses its tokens.
    pub fn device_chooses(&self, sequence: SequenceId, owner: u64) -> Option<bool> {
        self.runtime_host(sequence)
            .filter(|runtime_host| runtime_host.owner == owner)
            .map(|runtime_host| runtime_host.chooses)
    }

    /// Tells the device's samplers that `token` is the next of the text of `sequence`.
    pub fn accept_on_device(&mut self, sequence: SequenceId, token: Token) -> Result<()> {
        let Some(raw) = self.runtime_host(sequence).map(|runtime_host| runtime_host.raw) else {
            return Ok(());
        };
        let (err, err_size) = self.message.parts();
        // SAFETY: owned and live; any token is fine.
        match unsafe { sys::anneal_device_chain_accept(raw.as_ptr(), token, err, err_size) } {
            true => Ok(()),
            false => Err(Error::Sampler(self.message.text())),
        }
    }

    /// The token that the device chose in output row `row` of the last call, of a sequence whose tokens it chooses; -1 is the
    /// last row.
    pub fn token_of_device(&mut self, row: i32) -> Result<Token> {
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

    /// Chooses by `chain` from what the device left of output row `row` of the last call.
    pub fn choose_from_left(&mut self, chain: &mut RawChain, row: i32) -> Result<Token> {
        let (err, err_size) = self.message.parts();
        let mut token = 0;
        // SAFETY: both live; waits for the results, and reads as many as there are.
        let chosen = unsafe {
            sys::anneal_chain_sample_left(chain.as_ptr(), self.raw.as_ptr(), row, &mut token, err, err_size)
        };
        match chosen {
            true => Ok(token),
            false => Err(Error::Sampler(self.message.text())),
        }
    }
}

/// What a device said to samplers.
enum StepAnswer {
    Done,
    /// It has not what this one needs.
    Lacks(SamplingStep),
    /// It takes none.
    Impossible,
}
