//! Unloads models when clients ask for it.

use std::sync::Arc;
use std::time::Instant;

use tokio::time::timeout_at;

use super::entry::{LoadState, ModelEntry};
use super::registry::ModelRegistry;
use crate::api_error::{ApiError, ApiErrorKind, stopping};
use crate::closing::Closing;

impl ModelEntry {
    fn is_leaving(&self) -> bool {
        match &self.load_state {
            LoadState::Loaded(_) => self.leaves,
            LoadState::Unloading(_) => true,
            LoadState::Unloaded | LoadState::Loading | LoadState::Failed { .. } => false,
        }
    }
}

impl ModelRegistry {
    /// Unloads the model `name` after its running requests have ended, and waits until it is unloaded. New requests for
    /// the model wait, and load it again.
    ///
    /// # Errors
    /// - The model does not exist.
    /// - The model is being loaded.
    /// - The requests of the model have not ended at the time `until`.
    /// - The server is shutting down.
    pub async fn unload(self: &Arc<Self>, name: &str, until: Instant) -> Result<(), ApiError> {
        let mut changed = self.changed.subscribe();
        let id = self.mark_for_unloading(name)?;
        self.tell();
        loop {
            changed.borrow_and_update();
            if !self.lock().entry(id).is_some_and(|entry| entry.is_leaving()) {
                return Ok(());
            }
            if timeout_at(until.into(), changed.changed()).await.is_err() {
                let message = format!(
                    "the model {name:?} is still in use: it will be unloaded when its running requests have ended"
                );
                return Err(ApiError::new(ApiErrorKind::Deadline, message));
            }
        }
    }

    /// Marks the model `name` for unloading if it is loaded. Returns the number of its entry.
    fn mark_for_unloading(&self, name: &str) -> Result<u64, ApiError> {
        let mut state = self.lock();
        if state.closing != Closing::Open {
            return Err(stopping());
        }
        let at = state.find(Some(name))?;
        let entry = &mut state.entries[at];
        match entry.load_state {
            LoadState::Loaded(_) => entry.leaves = true,
            LoadState::Loading => {
                let message = format!("the model {name:?} is being loaded; try again when it is loaded");
                return Err(ApiError { retry_after: Some(1), ..ApiError::new(ApiErrorKind::Busy, message) });
            }
            LoadState::Unloaded | LoadState::Unloading(_) | LoadState::Failed { .. } => {}
        }
        Ok(entry.id)
    }
}
