//! Figures of a GPU while something was measured.

use serde::{Deserialize, Serialize};

/// What one GPU did. What it does not tell is absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GpuUse {
    /// Marketing name.
    pub name: String,
    /// CUDA's number of it: the 1 of `CUDA1`. Absent where that cannot be said, since CUDA counts the fastest first and the
    /// driver by the places on the bus.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<usize>,
    /// Looks that the figures are of.
    pub samples: u32,
    /// Mean share of the time in which a kernel ran on it, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub utilisation: Option<f64>,
    /// The most memory in use, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_peak: Option<u64>,
    /// Mean power of the card in watts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watts: Option<f64>,
    /// Joules of the card by its own counter (Volta and later).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub joules: Option<f64>,
    /// Mean clock of the multiprocessors in MHz.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sm_mhz: Option<f64>,
    /// The lowest that was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sm_mhz_lowest: Option<u32>,
    /// Why it stopped telling, where it did: a lost card, say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
}
