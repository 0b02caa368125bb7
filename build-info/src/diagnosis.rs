//! Diagnosis of a running inference process, as `anneal why --json` prints it.

use serde::{Deserialize, Serialize};

use crate::units::Bytes;

/// Version of the format. It changes only if a field is removed or changes its meaning.
pub const SCHEMA_VERSION: u32 = 1;

/// Diagnosis of one process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Diagnosis {
    /// Version of the format.
    pub schema_version: u32,
    /// Diagnosed process.
    pub process: DiagnosedProcess,
    /// Summary.
    pub verdict: HealthVerdict,
    /// Speed of this machine and of the process.
    pub speed: DiagnosedSpeed,
    /// Causes of a low speed, the most expensive first.
    pub causes: Vec<SlowCause>,
    /// Observations that explain the speed but are not faults.
    pub notes: Vec<String>,
    /// Readings that failed, with the reason. Causes that depend on them could not be found.
    pub unread: Vec<String>,
}

/// Process that was diagnosed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DiagnosedProcess {
    /// Process ID.
    pub pid: u32,
    /// Program: `llama-server`, `ollama`, `llama-cpp-python`, `llamafile`, `anneal`, or the name of another program.
    pub program: String,
    /// Activity during the observation.
    pub activity: ProcessActivity,
    /// Length of the observation, in seconds.
    pub observed_s: f64,
    /// CPU use during the observation, in cores.
    pub cpu_cores: f64,
    /// Number of threads that worked during the observation.
    pub working_threads: u32,
    /// Number of cores that the process can use well: the smallest of the affinity mask, the CPU quota and the physical
    /// cores.
    pub usable_cores: u32,
    /// Path of the model's file, as the process sees it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Quantisation of the model, such as `Q4_K_M`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quantisation: Option<String>,
    /// Size of the model's weights, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<Bytes>,
    /// Resident memory, in bytes.
    pub resident: Bytes,
    /// Memory in swap, in bytes.
    pub swapped: Bytes,
}

/// Activity of a process during the observation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum ProcessActivity {
    /// No work: only settings could be checked.
    #[default]
    Idle,
    /// Computation.
    Working,
    /// Loading of the model.
    Loading,
}

/// Summary of a diagnosis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum HealthVerdict {
    /// No cause was found, and the speed, if it is known, is within the machine's limit.
    Healthy,
    /// At least one cause was found.
    Slow,
    /// The speed is far below the machine's limit, but no cause was found.
    Unexplained,
    /// No cause was found, but some readings failed, and a cause may depend on them.
    Incomplete,
}

/// Speeds in tokens per second.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DiagnosedSpeed {
    /// Upper bound on decode: the measured read bandwidth divided by the bytes that a token reads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_decode: Option<f64>,
    /// Reason why the bound is unknown, or its computation.
    pub allowed_how: String,
    /// Observed decode speed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decode: Option<f64>,
    /// Observed prefill speed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefill: Option<f64>,
    /// Source of the observed speeds, or the reason why they are unknown.
    pub seen_how: String,
}

/// Cause of a low speed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SlowCause {
    /// Stable name of the cause, such as `threads-over-quota`. The documentation lists all names.
    pub id: String,
    /// Description in one sentence.
    pub title: String,
    /// Phase that the cause slows down.
    pub phase: SlowPhase,
    /// Factor by which the phase is slower than without the cause; `None` if it is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slowdown: Option<f64>,
    /// Origin of the factor.
    pub basis: CostBasis,
    /// Readings that show the cause.
    pub evidence: Vec<String>,
    /// Change that removes the cause.
    pub change: String,
}

/// Phase that a cause slows down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum SlowPhase {
    /// Prefill and decode.
    Both,
    /// Generation of tokens.
    Decode,
    /// Evaluation of prompts.
    Prefill,
    /// Loading of the model.
    Load,
}

/// Origin of a slowdown factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum CostBasis {
    /// Computed from readings of this process.
    Measured,
    /// Rule of thumb from measurements on other machines.
    Estimated,
    /// There is no factor.
    Unknown,
}
