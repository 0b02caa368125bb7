//! Optimisations applied to a build after compiling it: profiles, and their measured effect.

use serde::{Deserialize, Serialize};
use sha256::Sha256;

use crate::units::Bytes;

/// Profile-guided optimisation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Pgo {
    /// Digest of the merged profile.
    pub profile: Sha256,
    /// Code that was optimised: `all`, `cpp` or `rust`.
    pub scope: String,
    /// True if ggml's CPU kernels were optimised as well.
    #[serde(default)]
    pub kernels: bool,
    /// Training that produced the profile; `None` if the profile was supplied by the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub training: Option<Training>,
    /// Part of another run's hot functions that the profile covers.
    pub coverage: Coverage,
}

/// Training runs that produced a profile.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Training {
    /// Names of the workloads.
    pub workloads: Vec<String>,
    /// Models, by shape and quantisation or by file name.
    pub models: Vec<String>,
    /// Number of runs of the engine.
    pub runs: u32,
    /// Duration of the training, in wall-clock seconds.
    pub seconds: f64,
    /// Kind of counters: `single` is fast but loses counts between threads; `atomic` loses none but is slow;
    /// `sampled` means that perf sampled the program without counters.
    pub counters: String,
}

/// Comparison of a profile with the hot functions of a run whose workload was not used in training.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Coverage {
    /// Models of the run that measured the coverage: the workload's own models, or the user's model if it was used in
    /// training. Empty in records of older Anneal versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<String>,
    /// Number of functions in the profile.
    pub functions: u64,
    /// Number of functions in the profile that were executed in training.
    pub counted: u64,
    /// Number of hot functions of the run: the smallest set that accounts for 99 % of all executed blocks.
    pub hot: u64,
    /// Number of hot functions that were executed in training.
    pub hot_counted: u64,
    /// Ten hottest functions of the run.
    pub hottest: Vec<HotFunction>,
    /// Functions whose code changed after the profile was gathered; the compiler ignored their counts.
    pub mismatched: Vec<String>,
}

/// One function of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HotFunction {
    /// Symbol name of the function.
    pub name: String,
    /// Fraction of all executed blocks, 0 to 1.
    pub share: f64,
    /// True if the function was executed in training.
    pub counted: bool,
}

/// Program whose code BOLT reordered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Bolt {
    /// Source of the execution counts.
    pub method: BoltMethod,
    /// Digest of the merged profile.
    pub profile: Sha256,
    /// Training runs that produced the profile.
    pub training: Training,
    /// Options of `llvm-bolt`, without file names.
    pub options: Vec<String>,
    /// Changes that BOLT made to the code.
    pub layout: Layout,
    /// Size in bytes of the program before BOLT, linked without relocations.
    pub size_before: Bytes,
    /// Size of the program after BOLT, in bytes.
    pub size_after: Bytes,
}

/// Method by which BOLT learns which code is hot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum BoltMethod {
    /// Counters inserted into the program.
    Instrument,
    /// Branch records of the CPU, sampled by `perf`.
    Perf,
}

/// Changes that BOLT made to the code, as BOLT reports them. Execution counts come from the training. A figure that
/// BOLT did not report is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Layout {
    /// Number of functions in the program.
    pub functions: u64,
    /// Number of functions that were executed in training.
    pub hot_functions: u64,
    /// Number of functions whose blocks were reordered.
    pub reordered: u64,
    /// Number of identical functions that were folded into one.
    pub folded: u64,
    /// Size of the hot code, which BOLT placed together, in bytes.
    pub hot_bytes: Bytes,
    /// Size of the cold code, which BOLT moved away from the hot code, in bytes.
    pub cold_bytes: Bytes,
    /// Number of taken branches.
    pub taken_branches: Change,
    /// Number of executed instructions.
    pub instructions: Change,
}

/// Count from the training, before and after the new layout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Change {
    /// Count in the program before BOLT.
    pub before: u64,
    /// Count that BOLT computed for the rewritten program.
    pub after: u64,
}

impl Change {
    /// Returns the fraction by which the count fell; negative if it rose, 0 if the count was 0 before.
    pub fn less(&self) -> f64 {
        if self.before == 0 { 0.0 } else { 1.0 - self.after as f64 / self.before as f64 }
    }
}

/// Comparison of an optimised build with the original build.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Gain {
    /// Human-readable description of the baseline build.
    pub against: String,
    /// Plan hash of the baseline build.
    pub against_plan: Sha256,
    /// Result for each model and phase.
    pub phases: Vec<PhaseGain>,
    /// Speedup over prefill and decode of all models together.
    pub overall: Interval,
    /// True if the build became current because of this result.
    pub kept: bool,
    /// Reason for the decision, in words.
    pub verdict: String,
}

/// Speedup in one phase of one model's run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PhaseGain {
    /// Name of the model.
    pub model: String,
    /// Name of the phase: `prefill`, `decode`, ….
    pub phase: String,
    /// Speedup: baseline time divided by the build's time.
    pub ratio: Interval,
}

/// Median with its 95 % interval, from paired runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Interval {
    /// Median of the pairs' ratios.
    pub median: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
    /// Number of pairs.
    pub pairs: u32,
}
