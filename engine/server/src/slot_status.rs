//! State of the slots, written by the scheduler as it goes and read for `GET /status`: never what was asked or answered.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::scope::Owner;

/// State of a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SlotState {
    /// Nothing.
    #[default]
    Idle,
    /// It evaluates a prompt.
    Prefill,
    /// It generates.
    Decode,
    /// It waits for its client to read.
    Waiting,
    /// What another version of the server calls by another name.
    #[serde(other)]
    Other,
}

/// A slot at a glance.
#[derive(Clone, Copy, Debug)]
pub struct SlotSnapshot {
    /// What it does.
    pub state: SlotState,
    /// Tokens that it holds in the context.
    pub held: u32,
    /// Owner of these tokens and of its request; `None` if they belong to nobody.
    pub owner: Option<Owner>,
    /// Of its request.
    pub run: Option<RequestSnapshot>,
}

/// A request at a glance.
#[derive(Clone, Copy, Debug)]
pub struct RequestSnapshot {
    /// Tokens of its prompt.
    pub prompt: u32,
    /// Of these, found in the cache.
    pub cached: u32,
    /// Generated so far.
    pub generated: u32,
    /// When it came.
    pub arrived: Instant,
    /// When its first token was chosen.
    pub first: Option<Instant>,
}

/// The slots as they were before the last batch, in the order of the schedulers.
#[derive(Debug, Default)]
pub struct SlotSnapshots(Mutex<Vec<Vec<SlotSnapshot>>>);

impl SlotSnapshots {
    /// Adds a scheduler without slots, and returns its index.
    pub fn add_scheduler(&self) -> usize {
        let mut schedulers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        schedulers.push(Vec::new());
        schedulers.len() - 1
    }

    /// Removes all schedulers.
    pub fn clear(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Replaces the slots of `scheduler`.
    pub fn show(&self, scheduler: usize, slots: impl Iterator<Item = SlotSnapshot>) {
        let mut schedulers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(shown) = schedulers.get_mut(scheduler) {
            shown.clear();
            shown.extend(slots);
        }
    }

    /// What is shown.
    pub fn read(&self) -> Vec<SlotSnapshot> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).concat()
    }
}
