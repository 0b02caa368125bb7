//! Sequences of tokens that contexts evaluate, one context or two that take turns.

use std::time::Duration;

use build_info::Bytes;
use llama::error::Result;
use llama::{Context, Graphs};
use sampling::Chain;

use crate::speculative::speculator::Speculator;

/// Something that evaluates tokens one after the other: a context, or two that take turns.
pub trait Sequence {
    /// The context to evaluate the next `tokens` tokens in, which holds all that came before them.
    ///
    /// # Errors
    /// When the state cannot be handed over.
    fn context_for(&mut self, tokens: usize) -> Result<&mut Context>;

    /// The context that was evaluated in last: it has the logits.
    fn current(&mut self) -> &mut Context;

    /// Graphs that were computed so far, of all its contexts.
    fn graphs(&mut self) -> Graphs {
        // By name: with a method call it would be this one.
        Context::graphs(self.current())
    }

    /// What was handed over since this was last asked.
    fn take_hand_over(&mut self) -> Option<HandOver> {
        None
    }

    /// Lets a device do what it can of choosing the tokens of a text, where that was asked for. `chain` knows the prompt.
    ///
    /// # Errors
    /// Where llama.cpp cannot plan for it.
    fn place_sampling(&mut self, _chain: &mut Chain) -> Result<()> {
        Ok(())
    }

    /// What drafts its tokens, if anything does; it is put back afterwards.
    fn take_speculator(&mut self) -> Option<Box<Speculator>> {
        None
    }

    /// Puts it back.
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

/// What it took to hand a sequence over from one context to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandOver {
    /// Size of the state.
    pub size: Bytes,
    /// Time for taking and restoring it.
    pub time: Duration,
}
