//! Session: the context of one sequence, its drafts, and its choice between host and device for sampling.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use llama::error::Result;
use llama::options::DeviceSampling;
use llama::{ALONE, Context, Model, Token};
use sampling::Chain;

use crate::model;
use crate::runtime_host::RuntimeHost;
use crate::settings::Settings;
use crate::speculative::options::SpeculativeOptions;
use crate::speculative::speculator::Speculator;

/// Context of one sequence, its drafts, and its choice between host and device for sampling.
pub struct Session {
    context: Context,
    speculator: Option<Box<Speculator>>,
    on_device: DeviceSampling,
}

impl From<Context> for Session {
    /// Creates a session without drafts, in which the host chooses the tokens.
    fn from(context: Context) -> Self {
        Session { context, speculator: None, on_device: DeviceSampling::Off }
    }
}

impl Session {
    /// Creates a session whose context follows the settings.
    ///
    /// # Errors
    /// Errors of [`model::context`].
    pub fn open(
        model: &Arc<Model>,
        settings: &Settings,
        runtime_host: &RuntimeHost,
        interruptible: bool,
    ) -> Result<Self> {
        model::context(model, settings, runtime_host, interruptible).map(Session::from)
    }

    /// Turns on speculative decoding with `options`.
    ///
    /// # Errors
    /// Errors of [`Speculator::new`].
    pub fn speculate(
        &mut self,
        options: &SpeculativeOptions,
        settings: &Settings,
        runtime_host: &RuntimeHost,
    ) -> Result<()> {
        self.speculator = Speculator::new(options, &self.context, settings, runtime_host)?.map(Box::new);
        Ok(())
    }

    /// Lets decode use fewer threads while other programs use the cores: see [`crate::threads::follow_load`].
    pub fn follow_load(&mut self, settings: &Settings) {
        crate::threads::follow_load(&mut self.context, settings);
    }

    /// Sets whether the device that computes the logits also chooses tokens where possible. The prompt cache
    /// ([`crate::cache`]) stores logits, so the host always chooses the tokens if a prompt cache is used.
    pub fn sample_on_device(&mut self, mode: DeviceSampling) {
        self.on_device = mode;
    }

    /// Sets the tokens that precede the next prompt in the sequence, so that drafts can use them.
    pub fn speculate_after(&mut self, tokens: &[Token]) {
        if let Some(speculator) = &mut self.speculator {
            speculator.after(tokens);
        }
    }

    /// Returns the size of the context in tokens.
    pub fn n_ctx(&self) -> u32 {
        self.context.n_ctx()
    }

    /// Returns the number of threads for decode and for prefill.
    pub fn threads(&self) -> (u32, u32) {
        self.context.threads()
    }

    /// Makes `flag` interrupt evaluations, instead of the process-wide flag.
    pub fn stop_by(&mut self, flag: &Arc<AtomicBool>) {
        self.context.stop_by(flag);
    }

    /// Removes all tokens.
    pub fn clear(&mut self) {
        self.context.clear();
    }

    /// Restores a state that [`Context::save`] returned.
    ///
    /// # Errors
    /// If the state does not fit into the context.
    pub fn restore(&mut self, state: &[u8]) -> Result<()> {
        self.clear();
        self.context.restore(state)
    }

    /// Returns the context, which contains all tokens so far and the logits of the last evaluation.
    pub fn context(&mut self) -> &mut Context {
        &mut self.context
    }

    /// Moves as much of the sampling to a device as was requested and is possible. `chain` must have accepted the
    /// prompt.
    ///
    /// # Errors
    /// If llama.cpp cannot plan the sampling on the device.
    pub(crate) fn place_sampling(&mut self, chain: &mut Chain) -> Result<()> {
        let why = match sampling::asks_devices(self.on_device, self.context.model()) {
            Err(why) => why,
            Ok(()) if self.speculator.is_some() => "drafts are compared with logits",
            Ok(()) => return chain.place(&mut self.context, ALONE),
        };
        chain.stay_on_host(&mut self.context, ALONE, why)
    }

    /// Takes the speculator, if any, out of the session. The caller puts it back afterwards.
    pub(crate) fn take_speculator(&mut self) -> Option<Box<Speculator>> {
        self.speculator.take()
    }

    /// Puts the speculator back.
    pub(crate) fn put_speculator(&mut self, speculator: Box<Speculator>) {
        self.speculator = Some(speculator);
    }
}
