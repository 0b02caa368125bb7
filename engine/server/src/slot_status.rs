//! What goes on in the slots, written by the scheduler as it goes and read by whoever wants to look: never what was asked
//! or answered.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::scope::Owner;

/// What a slot does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
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
pub struct Shown {
    /// What it does.
    pub state: State,
    /// Tokens that it holds in the context.
    pub held: u32,
    /// Owner of these tokens and of its request; `None` if they belong to nobody.
    pub owner: Option<Owner>,
    /// Of its request.
    pub run: Option<ShownRun>,
}

/// A request at a glance.
#[derive(Clone, Copy, Debug)]
pub struct ShownRun {
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

/// The slots as they were before the last batch, those of each scheduler in its place.
#[derive(Debug, Default)]
pub struct Board(Mutex<Vec<Vec<Shown>>>);

impl Board {
    /// A place for another scheduler.
    pub fn place(&self) -> usize {
        let mut places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        places.push(Vec::new());
        places.len() - 1
    }

    /// Takes away all places: there are no schedulers any more.
    pub fn clear(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Shows these in `place`.
    pub fn show(&self, place: usize, slots: impl Iterator<Item = Shown>) {
        let mut places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(shown) = places.get_mut(place) {
            shown.clear();
            shown.extend(slots);
        }
    }

    /// What is shown.
    pub fn read(&self) -> Vec<Shown> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).concat()
    }
}
