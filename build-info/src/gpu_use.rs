//! Use of a GPU during a measurement.

use serde::{Deserialize, Serialize};

/// Use of one GPU. Figures that the driver does not report are absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GpuUse {
    /// Marketing name.
    pub name: String,
    /// CUDA's number for the GPU, as in `CUDA1`. Absent if unknown, because CUDA counts the fastest GPU first and the
    /// driver counts by bus position.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<usize>,
    /// Number of samples taken.
    pub samples: u32,
    /// Mean fraction of the time in which a kernel ran on the GPU, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub utilisation: Option<f64>,
    /// Peak memory in use, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_peak: Option<u64>,
    /// Mean power of the GPU, in watts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watts: Option<f64>,
    /// Energy of the GPU by its own counter (Volta and later), in joules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub joules: Option<f64>,
    /// Mean clock of the multiprocessors, in MHz.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sm_mhz: Option<f64>,
    /// Lowest clock seen, in MHz.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sm_mhz_lowest: Option<u32>,
    /// Reason why the driver stopped reporting, for example a lost GPU; `None` if it did not stop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
}
