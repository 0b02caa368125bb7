//! Sequences of tokens.

use llama::Context;
use llama::error::Result;
use sampling::Chain;

use crate::speculative::speculator::Speculator;

/// Sequence of tokens, with the context that evaluates them.
pub trait Sequence {
    /// Returns the context, which contains all tokens so far and the logits of the last evaluation.
    fn context(&mut self) -> &mut Context;

    /// Moves as much of the sampling to a device as was requested and is possible. `chain` must have accepted the
    /// prompt.
    ///
    /// # Errors
    /// If llama.cpp cannot plan the sampling on the device.
    fn place_sampling(&mut self, _chain: &mut Chain) -> Result<()> {
        Ok(())
    }

    /// Takes the speculator, if any, out of the sequence. The caller puts it back afterwards.
    fn take_speculator(&mut self) -> Option<Box<Speculator>> {
        None
    }

    /// Puts the speculator back.
    fn put_speculator(&mut self, _speculator: Box<Speculator>) {}
}

impl Sequence for Context {
    fn context(&mut self) -> &mut Context {
        self
    }
}
