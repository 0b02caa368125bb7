//! State of the slots, without any texts. The scheduler writes the state before each batch, and `GET /status` reads
//! it.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::scope::Owner;

/// State of a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SlotState {
    /// Free.
    #[default]
    Idle,
    /// Evaluating a prompt.
    Prefill,
    /// Generating.
    Decode,
    /// Waiting for the client to read.
    Waiting,
    /// State that this version of Anneal does not know.
    #[serde(other)]
    Other,
}

/// Snapshot of a slot.
#[derive(Clone, Copy, Debug)]
pub struct SlotSnapshot {
    /// State of the slot.
    pub state: SlotState,
    /// Number of tokens that the slot holds.
    pub held: u32,
    /// Owner of the held tokens and of the request. `None` if no request may reuse the tokens.
    pub owner: Option<Owner>,
    /// Snapshot of the running request.
    pub run: Option<RequestSnapshot>,
}

/// Snapshot of a request.
#[derive(Clone, Copy, Debug)]
pub struct RequestSnapshot {
    /// Number of prompt tokens.
    pub prompt: u32,
    /// Number of prompt tokens that were in the cache.
    pub cached: u32,
    /// Number of tokens generated so far.
    pub generated: u32,
    /// Time of arrival.
    pub arrived: Instant,
    /// Time at which the first token was sampled.
    pub first: Option<Instant>,
}

/// State of the slots before the last batch, grouped by scheduler.
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

    /// Returns the slots of all schedulers.
    pub fn read(&self) -> Vec<SlotSnapshot> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).concat()
    }
}
