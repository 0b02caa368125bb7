//! What was done to a build beyond compiling it: profiles, and what they brought.

use serde::{Deserialize, Serialize};
use sha256::Sha256;

use crate::units::Bytes;

/// Profile-guided optimisation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Pgo {
    /// Digest of the merged profile.
    pub profile: Sha256,
    /// Which code it was applied to: `all`, `cpp` or `rust`.
    pub scope: String,
    /// Whether ggml's CPU kernels were part of it.
    #[serde(default)]
    pub kernels: bool,
    /// How the profile was gathered; not there when it was given from outside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub training: Option<Training>,
    /// How much of a run the profile speaks of.
    pub coverage: Coverage,
}

/// How a profile was gathered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Training {
    /// The workloads, by name.
    pub workloads: Vec<String>,
    /// The models, by shape and quantisation or by file name.
    pub models: Vec<String>,
    /// How often the engine was run.
    pub runs: u32,
    /// Wall-clock seconds.
    pub seconds: f64,
    /// How the counters count: `single` loses counts between threads and is fast, `atomic` does neither; `sampled`
    /// are no counters but perf.
    pub counters: String,
}

/// How much of a run a profile speaks of. The run is one that was not trained on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Coverage {
    /// Models of that run: the workload's own, or the user's where that one trained. Records of Anneal before this field
    /// say nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<String>,
    /// Functions that the profile knows.
    pub functions: u64,
    /// Those of them that were run in training.
    pub counted: u64,
    /// The run's hot functions: the fewest that make up 99 % of all blocks executed.
    pub hot: u64,
    /// Those of them that were run in training.
    pub hot_counted: u64,
    /// The ten hottest functions of the run.
    pub hottest: Vec<HotFunction>,
    /// Functions whose code was another when the profile was gathered; the compiler left their counts out.
    pub mismatched: Vec<String>,
}

/// One function of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HotFunction {
    /// Name, as linkers see it.
    pub name: String,
    /// Share of all blocks executed, 0 to 1.
    pub share: f64,
    /// Whether it was run in training.
    pub counted: bool,
}

/// A program laid out anew by BOLT.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Bolt {
    /// Where the counts come from.
    pub method: BoltMethod,
    /// Digest of the merged profile.
    pub profile: Sha256,
    /// How the profile was gathered.
    pub training: Training,
    /// What `llvm-bolt` was told, without the names of files.
    pub options: Vec<String>,
    /// What it did.
    pub layout: Layout,
    /// Size of the program before, as it was linked without relocations.
    pub size_before: Bytes,
    /// Size of the program after.
    pub size_after: Bytes,
}

/// How BOLT learns what is hot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum BoltMethod {
    /// Counters in the program.
    Instrument,
    /// Branch records of the CPU, sampled by `perf`.
    Perf,
}

/// What BOLT did to the code, in its own words. Counts are those of the training; 0 where it said nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Layout {
    /// Functions of the program.
    pub functions: u64,
    /// Those of them that were run in training.
    pub hot_functions: u64,
    /// Those whose blocks were put into another order.
    pub reordered: u64,
    /// Identical functions that became one.
    pub folded: u64,
    /// Bytes of hot code, kept together.
    pub hot_bytes: Bytes,
    /// Bytes of cold code, moved away from the hot.
    pub cold_bytes: Bytes,
    /// Branches that were taken.
    pub taken_branches: Change,
    /// Instructions that were executed.
    pub instructions: Change,
}

/// A count of the training, and what it would be with the new layout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Change {
    /// In the program as it was.
    pub before: u64,
    /// In the program as it is now, computed.
    pub after: u64,
}

impl Change {
    /// The share that is gone, negative where there is more of it; 0 of nothing.
    pub fn less(&self) -> f64 {
        if self.before == 0 { 0.0 } else { 1.0 - self.after as f64 / self.before as f64 }
    }
}

/// How a build compares with the one that it was made from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Gain {
    /// What it is compared with, for people.
    pub against: String,
    /// Plan of that build.
    pub against_plan: Sha256,
    /// One entry for each model and phase.
    pub phases: Vec<PhaseGain>,
    /// Prefill and decode of all models together: how many times as fast.
    pub overall: Interval,
    /// Whether it became current for that.
    pub kept: bool,
    /// Why, in words.
    pub verdict: String,
}

/// The gain in one phase of one model's run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PhaseGain {
    /// The model.
    pub model: String,
    /// `prefill`, `decode`, ….
    pub phase: String,
    /// How many times as fast.
    pub ratio: Interval,
}

/// A median with its 95 % interval, from paired runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Interval {
    /// Median of the pairs' ratios.
    pub median: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// Number of pairs.
    pub pairs: u32,
}
