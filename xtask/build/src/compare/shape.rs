//! Shape of a run.

use serde::{Deserialize, Serialize};

/// Shape of a run: the number of tokens in each part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunShape {
    /// Number of prompt tokens, which prefill evaluates.
    pub prompt: u32,
    /// Number of generated tokens, which are evaluated one by one.
    pub generate: u32,
    /// Number of tokens in the context before prefill or decode.
    #[serde(default)]
    pub depth: u32,
}
