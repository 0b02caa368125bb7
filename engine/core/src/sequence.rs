//! Sequences of tokens in one context, or in two alternating contexts.

use std::time::Duration;

use build_info::Bytes;
use llama::error::Result;
use llama::{Context, Graphs};
use sampling::Chain;

use crate::speculative::speculator::Speculator;

/// Sequence that evaluates tokens in one context, or in two alternating contexts.
pub trait Sequence {
    /// Returns the context that evaluates the next `tokens` tokens. The context contains all earlier tokens.
    ///
    /// # Errors
    /// If the state cannot be moved between the contexts.
    fn context_for(&mut self, tokens: usize) -> Result<&mut Context>;

    /// Returns the context of the last evaluation, which has the logits.
    fn current(&mut self) -> &mut Context;

    /// Returns the graphs that all contexts have computed so far.
    fn graphs(&mut self) -> Graphs {
        // Method syntax would call this function recursively.
        Context::graphs(self.current())
    }

    /// Returns the moves between contexts since the last call.
    fn take_hand_over(&mut self) -> Option<HandOver> {
        None
    }

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
    fn context_for(&mut self, _tokens: usize) -> Result<&mut Context> {
        Ok(self)
    }

    fn current(&mut self) -> &mut Context {
        self
    }
}

/// Cost of moving a sequence from one context to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandOver {
    /// Size of the state.
    pub size: Bytes,
    /// Time for saving and restoring the state.
    pub time: Duration,
}
