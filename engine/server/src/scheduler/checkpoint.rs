//! Saves checkpoints of prompts, and continues sequences from checkpoints.

use build_info::Bytes;
use llama::{PrefixReuse, SequenceId, Token};

use super::super::scope::Scope;
use super::state::Scheduler;

impl Scheduler {
    /// True if the model needs checkpoints to reuse prompts.
    pub(super) fn saves_checkpoints(&self) -> bool {
        self.rules.reuse
            && !self.checkpoints_too_large
            && self.context.model().prefix_reuse().needs_checkpoints()
    }

    /// Saves a checkpoint if the evaluation of the prompt in slot `at` has paused for it.
    pub(super) fn save_checkpoint(&mut self, at: usize) {
        let slot = &self.slots[at];
        let (Some(scope), true) = (slot.scope, slot.pauses.contains(&slot.held.len())) else { return };
        if self.checkpoints.contains(scope, &slot.held) {
            return;
        }
        match self.context.save_checkpoint(slot.sequence) {
            Ok(state) if Bytes(state.len() as u64) > self.rules.checkpoint_memory => {
                self.checkpoints_too_large = true;
                llama::notice::warn(&format!(
                    "a checkpoint of a prompt needs {}, but checkpoint_memory is {}, so prompts are evaluated from their \
                     beginning\nhint: raise checkpoint_memory",
                    Bytes(state.len() as u64),
                    self.rules.checkpoint_memory
                ));
            }
            Ok(state) => {
                let tokens = slot.held.clone();
                self.add_checkpoint(scope, tokens, state);
            }
            // Without this checkpoint, later prompts start from an earlier checkpoint or from their beginning.
            Err(error) => llama::notice::warn(&error.to_string()),
        }
    }

    /// Adds the `state` after `tokens` to the memory.
    pub(super) fn add_checkpoint(&mut self, scope: Scope, tokens: Vec<Token>, state: Vec<u8>) {
        self.metrics.checkpoints_saved.add(1);
        let dropped = self.checkpoints.add(scope, tokens, state, self.rules.checkpoint_memory);
        self.metrics.checkpoints_dropped.add(dropped as u64);
        self.show_checkpoints();
    }

    /// Truncates `sequence` to `kept`, the first tokens of a prompt of `scope`. `whole` is true if the sequence
    /// contains no other tokens. Returns false if this fails; the content of the sequence is then unknown.
    pub(super) fn cut(&mut self, sequence: SequenceId, scope: Scope, kept: &[Token], whole: bool) -> bool {
        if whole || self.context.model().prefix_reuse() == PrefixReuse::AnyToken {
            return self.context.forget(sequence, kept.len() as u32);
        }
        let Some(state) = self.checkpoints.state(scope, kept) else { return false };
        match self.context.restore_checkpoint(sequence, state, kept.len()) {
            Ok(()) => {
                self.metrics.checkpoints_restored.add(1);
                true
            }
            Err(error) => {
                llama::notice::warn(&error.to_string());
                false
            }
        }
    }

    /// Drops checkpoints until the rest fits into the configured memory, which may have changed. Without reuse of prompts,
    /// drops all of them.
    pub(super) fn shrink_checkpoints(&mut self) {
        self.checkpoints_too_large = false;
        let most = if self.rules.reuse { self.rules.checkpoint_memory } else { Bytes(0) };
        let dropped = self.checkpoints.shrink(most);
        self.metrics.checkpoints_dropped.add(dropped as u64);
        self.show_checkpoints();
    }

    /// Updates the gauges of the checkpoints.
    fn show_checkpoints(&mut self) {
        let (count, bytes) = self.checkpoints.size();
        let (before, before_bytes) = std::mem::replace(&mut self.checkpoints_shown, (count, bytes));
        self.metrics.checkpoints.change(before as u64, count as u64);
        self.metrics.checkpoint_bytes.change(before_bytes.0, bytes.0);
    }
}
