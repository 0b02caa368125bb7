//! Sizes of a run.

use serde::{Deserialize, Serialize};

/// Sizes of a run, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunShape {
    /// Evaluated by prefill.
    pub prompt: u32,
    /// Evaluated one by one.
    pub generate: u32,
    /// In the context before either.
    #[serde(default)]
    pub depth: u32,
}
