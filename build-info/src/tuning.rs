//! Tuning record: the fastest settings found for a build, CPU, model and objective.
//!
//! Like FFTW's wisdom, an entry never causes wrong results. An entry applies only if its whole [`TuningKey`] still
//! matches. This module does no input or output: the engine reads and writes the file.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::defaults::Defaults;
use crate::host::Host;
use crate::units::Bytes;

/// Version of the format, `major.minor`: a new major version breaks readers, and a new minor version adds fields.
pub const SCHEMA_VERSION: &str = "1.1";

/// All tuning results, newest entry last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TuningRecord {
    /// Version of this format, `major.minor`.
    pub schema_version: String,
    /// Entries in the order in which they were written.
    pub entries: Vec<Entry>,
}

/// Conditions under which an entry applies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TuningKey {
    /// Identity of the engine: the hash of the build's plan, or the versions of llama.cpp and Anneal if the engine
    /// has no record.
    pub build: String,
    /// Run-time defaults of the build's profile. The defaults determine the placement of the model and are not part
    /// of the plan's hash. Absent before version 1.1 of this format.
    #[serde(default, skip_serializing_if = "Defaults::is_empty")]
    pub defaults: Defaults,
    /// CPU, and the share of it that the process may use.
    pub cpu: CpuKey,
    /// Shape of the model.
    pub model: ModelShape,
    /// Objective of the tuning: `chat`, `rag`, `batch`, `latency`, or `prompt:generated` tokens.
    pub objective: String,
}

/// CPU, and the share of it that a process may use.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CpuKey {
    /// Vendor as CPUID reports it: `GenuineIntel`, `AuthenticAMD`, ….
    pub vendor: String,
    /// Marketing name.
    pub name: String,
    /// Display family.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub family: Option<u32>,
    /// Display model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<u32>,
    /// Digest (FNV-1a, 64 bits) of the names of the instruction sets, in order, each followed by a newline.
    pub features: String,
    /// Logical CPUs of the affinity mask.
    pub affinity: Vec<u32>,
    /// Tightest CPU quota, in cores.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<f64>,
}

/// Properties of a model that determine its speed. Models of the same shape share their settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ModelShape {
    /// Name of the architecture in llama.cpp.
    pub architecture: String,
    /// Number of layers.
    pub layers: u32,
    /// Length of an embedding.
    pub embedding: u32,
    /// Width of the feed-forward network; 0 if the layers differ.
    pub feed_forward: u32,
    /// Number of attention heads; 0 if the layers differ.
    pub heads: u32,
    /// Number of K and V heads; 0 if the layers differ.
    pub kv_heads: u32,
    /// Number of tokens in the vocabulary.
    pub vocabulary: u64,
    /// Name of the quantisation: `Q4_K_M`, ….
    pub quantisation: String,
    /// Total size of all tensors, in bytes.
    pub weights: Bytes,
}

/// Settings chosen by tuning. A setting that is `None` keeps its default.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Chosen {
    /// Number of threads that generate tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decode_threads: Option<u32>,
    /// Number of threads that evaluate the prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefill_threads: Option<u32>,
    /// Maximum number of tokens in one call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n_batch: Option<u32>,
    /// Maximum number of tokens in one graph.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n_ubatch: Option<u32>,
    /// True if weights are repacked for the CPU's kernels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repack: Option<bool>,
    /// True if the tiled kernels are used for weights that are not repacked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tiled: Option<bool>,
    /// Load mode of the weights, a value of `--load-mode`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load_mode: Option<String>,
    /// Flash attention, a value of `--flash-attn`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flash_attention: Option<String>,
    /// Type of the K cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub type_k: Option<String>,
    /// Type of the V cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub type_v: Option<String>,
    /// CPU affinity of threads, a value of `--affinity`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub affinity: Option<String>,
    /// Polling level of waiting threads, 0 (sleep) to 100 (spin).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub poll: Option<u32>,
    /// True if large buffers ask for huge pages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub huge_pages: Option<bool>,
    /// CPU variant whose kernel library the engine loads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_variant: Option<String>,
    /// Kernels for products and attention, a value of `--kernels`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernels: Option<String>,
}

/// Result of one tuning run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Entry {
    /// Conditions under which the entry applies.
    pub key: TuningKey,
    /// Chosen settings; empty if the defaults are as fast.
    pub chosen: Chosen,
    /// Date when tuning finished, RFC 3339 in UTC. The date is informational: no decision depends on it.
    pub date: String,
    /// Version of Anneal that wrote the entry.
    pub anneal_version: String,
    /// Time budget of the tuning, in seconds.
    pub budget_seconds: f64,
    /// Duration of the tuning, in seconds.
    pub seconds: f64,
    /// True if settings that lose accuracy were allowed.
    pub lossy: bool,
    /// Numbers of prompt tokens and generated tokens of the workload.
    pub tokens: (u32, u32),
    /// Final comparison of the chosen settings with the defaults; `None` if the defaults were kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirmation: Option<Confirmation>,
    /// Measurements behind the result, stage by stage.
    pub stages: Vec<Stage>,
    /// Remarks for the reader.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// Interleaved runs of the defaults and the chosen settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Confirmation {
    /// Speedup of prompt and generation together.
    pub total: Interval,
    /// Speedup of prefill.
    pub prefill: Interval,
    /// Speedup of decode.
    pub decode: Interval,
    /// Samples of the default settings.
    pub default_samples: Vec<Sample>,
    /// Samples of the chosen settings, paired with `default_samples`.
    pub tuned_samples: Vec<Sample>,
}

/// Median of paired ratios with its 95 % interval; above 1 is faster.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Interval {
    /// Median of the ratios.
    pub median: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
    /// Number of pairs.
    pub pairs: u32,
}

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{:.3} [{:.3}, {:.3}]", self.median, self.low, self.high))
    }
}

/// Times of one run. A phase that did not run has the time 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Sample {
    /// Number of prompt tokens evaluated.
    pub prompt: u32,
    /// Number of tokens in the context before the prompt.
    #[serde(default)]
    pub prompt_after: u32,
    /// Time of the prompt evaluation, in nanoseconds.
    pub prefill_ns: u64,
    /// Number of tokens generated.
    pub generated: u32,
    /// Number of tokens in the context before generation; 0 if generation followed the prompt.
    #[serde(default)]
    pub generated_after: u32,
    /// Time of the generation, in nanoseconds.
    pub decode_ns: u64,
}

/// Comparison of candidates that differ in one setting.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Stage {
    /// Name of the setting that the stage decides.
    pub name: String,
    /// Candidates, with the baseline first.
    pub candidates: Vec<Candidate>,
    /// Index of the winning candidate.
    pub winner: u32,
    /// Reason why the stage was cut short or skipped; `None` if it ran in full.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut_short: Option<String>,
}

/// One combination of settings and its results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Candidate {
    /// Description in words, as in `no repacking`.
    pub name: String,
    /// All settings of the candidate.
    pub settings: Chosen,
    /// Samples of the candidate, interleaved with the baseline's samples.
    pub samples: Vec<Sample>,
    /// Speedup over the baseline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio: Option<Interval>,
    /// Comparison of the candidate's output with the baseline's; `None` if the output was not checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// Reason why the candidate was dropped; `None` if it was kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dropped: Option<String>,
}

/// Reason why a record has no matching entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Miss {
    /// No model of this shape was tuned.
    Model,
    /// The model was tuned on another CPU.
    Cpu {
        /// Name of the CPU in the record.
        found: String,
    },
    /// The model was tuned on the same CPU with different cores or a different quota.
    Given {
        /// Cores and CPU quota of the tuning run.
        found: String,
    },
    /// The model was tuned with another build of the engine.
    Build,
    /// The model was tuned with the same build but with different defaults in its profile.
    Defaults {
        /// Defaults during the tuning run.
        found: Defaults,
    },
    /// The model was tuned for other objectives.
    Objective {
        /// Objectives that the record contains.
        found: Vec<String>,
    },
}

impl fmt::Display for Miss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Model => f.write_str("no model of this shape was tuned"),
            Self::Cpu { found } => write!(f, "this model was tuned on another CPU ({found})"),
            Self::Given { found } => {
                write!(f, "this model was tuned with other CPUs or another quota ({found})")
            }
            Self::Build => f.write_str("this model was tuned with another build of anneal"),
            Self::Defaults { found } if found.is_empty() => f.write_str(
                "this model was tuned before tuning records contained the defaults of the build's profile",
            ),
            Self::Defaults { found } => {
                write!(f, "this model was tuned with different defaults of this build ({found})")
            }
            Self::Objective { found } => write!(f, "this model was tuned for {} only", found.join(", ")),
        }
    }
}

/// Reason why a tuning record was rejected.
#[derive(Debug, thiserror::Error)]
pub enum TuningError {
    /// The content does not match this version of the format.
    #[error("it is damaged: {0}")]
    Damaged(#[from] serde_json::Error),
    /// A later version of Anneal wrote the record.
    #[error("it has schema version {found}, but this program reads {SCHEMA_VERSION}")]
    Newer {
        /// Version of the record's format.
        found: String,
    },
}

impl Default for TuningRecord {
    fn default() -> Self {
        Self { schema_version: SCHEMA_VERSION.to_string(), entries: Vec::new() }
    }
}

impl TuningRecord {
    /// Parses the record in `text`.
    ///
    /// # Errors
    /// If the record is damaged or has a newer major version.
    pub fn parse(text: &[u8]) -> Result<Self, TuningError> {
        // The version is parsed first, because other fields may have any form in a newer major version.
        #[derive(Deserialize)]
        struct TuningVersion {
            schema_version: String,
        }
        let TuningVersion { schema_version: found } = serde_json::from_slice(text)?;
        let major = |version: &str| version.split('.').next().and_then(|major| major.parse::<u32>().ok());
        match (major(&found), major(SCHEMA_VERSION)) {
            (Some(theirs), Some(ours)) if theirs <= ours => {}
            _ => return Err(TuningError::Newer { found }),
        }
        Ok(serde_json::from_slice(text)?)
    }

    /// Returns the newest entry for `build` with its `defaults`, on `cpu`, for models of shape `model`. If
    /// `objective` is `None`, an entry for any objective matches.
    ///
    /// # Errors
    /// If no entry matches; the error is the first condition that fails.
    pub fn lookup(
        &self,
        build: &str,
        defaults: &Defaults,
        cpu: &CpuKey,
        model: &ModelShape,
        objective: Option<&str>,
    ) -> Result<&Entry, Miss> {
        let model: Vec<&Entry> = self.entries.iter().filter(|entry| entry.key.model == *model).collect();
        let newest = |entries: &[&Entry]| entries.last().map(|entry| entry.key.cpu.clone());
        let Some(other) = newest(&model) else { return Err(Miss::Model) };
        let chip: Vec<&Entry> = model.into_iter().filter(|entry| entry.key.cpu.is_chip(cpu)).collect();
        let Some(given) = newest(&chip) else { return Err(Miss::Cpu { found: other.name }) };
        let here: Vec<&Entry> = chip.into_iter().filter(|entry| entry.key.cpu == *cpu).collect();
        if here.is_empty() {
            return Err(Miss::Given { found: given.given() });
        }
        let of_build: Vec<&Entry> = here.into_iter().filter(|entry| entry.key.build == build).collect();
        let Some(newest) = of_build.last() else { return Err(Miss::Build) };
        let found = newest.key.defaults.clone();
        let ours: Vec<&Entry> =
            of_build.into_iter().filter(|entry| entry.key.defaults == *defaults).collect();
        if ours.is_empty() {
            return Err(Miss::Defaults { found });
        }
        let wanted = |entry: &&&Entry| objective.is_none_or(|objective| entry.key.objective == objective);
        match ours.iter().rev().find(wanted) {
            Some(entry) => Ok(entry),
            None => {
                Err(Miss::Objective { found: ours.iter().map(|entry| entry.key.objective.clone()).collect() })
            }
        }
    }

    /// Appends `entry` and removes an existing entry with the same key.
    pub fn put(&mut self, entry: Entry) {
        self.entries.retain(|other| other.key != entry.key);
        self.schema_version = SCHEMA_VERSION.to_string();
        self.entries.push(entry);
    }

    /// Inserts the entries of `others` whose keys are new. The inserted entries are treated as the oldest, because
    /// measurements of this machine take precedence over imported ones. Returns the number of inserted entries.
    pub fn merge(&mut self, others: impl IntoIterator<Item = Entry>) -> usize {
        let mut new: Vec<Entry> = Vec::new();
        for other in others {
            if !self.entries.iter().chain(&new).any(|entry| entry.key == other.key) {
                new.push(other);
            }
        }
        let merged = new.len();
        self.entries.splice(..0, new);
        merged
    }
}

impl CpuKey {
    /// Creates the key for the CPU of `host` and this process's share of it.
    pub fn of(host: &Host) -> Self {
        Self {
            vendor: host.cpu.vendor.clone(),
            name: host.cpu.name.clone(),
            family: host.cpu.family,
            model: host.cpu.model,
            features: digest(host.cpu.features.iter().map(String::as_str)),
            affinity: host.limits.affinity.clone(),
            quota: host.limits.cpu_quota,
        }
    }

    /// True if both are the same CPU model; the processes' shares of the CPU are ignored.
    fn is_chip(&self, other: &Self) -> bool {
        let chip = |key: &Self| (key.vendor.clone(), key.family, key.model, key.features.clone());
        chip(self) == chip(other)
    }

    /// Describes the process's share of the CPU.
    pub fn given(&self) -> String {
        let cpus: Vec<String> = self.affinity.iter().map(u32::to_string).collect();
        let quota = self.quota.map_or(String::new(), |quota| format!(", a quota of {quota} cores"));
        format!("CPUs {}{quota}", cpus.join(","))
    }
}

/// Returns the FNV-1a hash of `lines`: <http://www.isthe.com/chongo/tech/comp/fnv/>. The hash detects accidental
/// changes, not attacks.
fn digest<'a>(lines: impl Iterator<Item = &'a str>) -> String {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in lines.flat_map(|line| line.bytes().chain([b'\n'])) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    format!("{hash:016x}")
}

impl Stage {
    /// True if the stage has a result: a winner, or a complete run without a winner. A stage that was cut short
    /// without a winner has no result.
    pub fn is_decided(&self) -> bool {
        self.winner > 0 || self.cut_short.is_none()
    }
}

impl Entry {
    /// Returns the names of the stages without a result.
    pub fn undecided(&self) -> Vec<&str> {
        let stages = self.stages.iter().filter(|stage| !stage.is_decided());
        stages.map(|stage| stage.name.as_str()).collect()
    }
}

impl Chosen {
    /// Returns every chosen setting as a flag name and its value.
    pub fn named(&self) -> Vec<(&'static str, String)> {
        let on = |value: bool| if value { "on" } else { "off" }.to_string();
        let number = |value: u32| value.to_string();
        [
            ("threads", self.decode_threads.map(number)),
            ("threads-batch", self.prefill_threads.map(number)),
            ("affinity", self.affinity.clone()),
            ("poll", self.poll.map(number)),
            ("batch-size", self.n_batch.map(number)),
            ("ubatch-size", self.n_ubatch.map(number)),
            ("load-mode", self.load_mode.clone()),
            ("repack", self.repack.map(on)),
            ("tiled", self.tiled.map(on)),
            ("huge-pages", self.huge_pages.map(on)),
            ("cpu-variant", self.cpu_variant.clone()),
            ("kernels", self.kernels.clone()),
            ("cache-type-k", self.type_k.clone()),
            ("cache-type-v", self.type_v.clone()),
            ("flash-attn", self.flash_attention.clone()),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)))
        .collect()
    }

    /// True if no setting was chosen.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::defaults::Layers;

    fn cpu(name: &str, cores: u32, quota: Option<f64>) -> CpuKey {
        CpuKey {
            vendor: "AuthenticAMD".to_string(),
            name: name.to_string(),
            family: Some(25),
            model: Some(name.len() as u32),
            features: digest(["avx2", "fma"].into_iter()),
            affinity: (0..cores).collect(),
            quota,
        }
    }

    fn model(layers: u32) -> ModelShape {
        ModelShape {
            architecture: "qwen2".to_string(),
            layers,
            embedding: 1536,
            feed_forward: 8960,
            heads: 12,
            kv_heads: 2,
            vocabulary: 151_936,
            quantisation: "Q4_K_M".to_string(),
            weights: Bytes::mib(900),
        }
    }

    fn entry(build: &str, cpu: CpuKey, model: ModelShape, objective: &str, poll: u32) -> Entry {
        Entry {
            key: TuningKey {
                build: build.to_string(),
                defaults: Defaults::default(),
                cpu,
                model,
                objective: objective.to_string(),
            },
            chosen: Chosen { poll: Some(poll), ..Chosen::default() },
            date: "2026-01-01T00:00:00Z".to_string(),
            anneal_version: "0.1.0".to_string(),
            budget_seconds: 180.0,
            seconds: 100.0,
            lossy: false,
            tokens: (128, 512),
            confirmation: None,
            stages: Vec::new(),
            notes: Vec::new(),
        }
    }

    #[test]
    fn an_entry_counts_where_its_whole_key_fits_and_a_miss_says_what_does_not() {
        let mut record = TuningRecord::default();
        record.put(entry("a", cpu("x", 2, None), model(28), "chat", 1));
        record.put(entry("a", cpu("x", 2, None), model(28), "rag", 2));
        let found = |build, key: CpuKey, layers, objective: Option<&str>| {
            record
                .lookup(build, &Defaults::default(), &key, &model(layers), objective)
                .map(|entry| entry.chosen.poll)
        };
        let other = Miss::Cpu { found: "x".to_string() };
        let given = Miss::Given { found: "CPUs 0,1".to_string() };
        let only = Miss::Objective { found: vec!["chat".to_string(), "rag".to_string()] };
        assert_eq!(found("a", cpu("x", 2, None), 28, None), Ok(Some(2)));
        assert_eq!(found("a", cpu("x", 2, None), 28, Some("chat")), Ok(Some(1)));
        assert_eq!(found("a", cpu("x", 2, None), 24, None), Err(Miss::Model));
        assert_eq!(found("a", cpu("yy", 2, None), 28, None), Err(other));
        assert_eq!(found("a", cpu("x", 4, None), 28, None), Err(given.clone()));
        assert_eq!(found("a", cpu("x", 2, Some(1.5)), 28, None), Err(given));
        assert_eq!(found("b", cpu("x", 2, None), 28, None), Err(Miss::Build));
        assert_eq!(found("a", cpu("x", 2, None), 28, Some("batch")), Err(only));
        assert_eq!(
            TuningRecord::default().lookup("a", &Defaults::default(), &cpu("x", 2, None), &model(28), None),
            Err(Miss::Model)
        );
    }

    #[test]
    fn what_a_profile_wants_of_its_build_is_part_of_the_key() {
        let mut record = TuningRecord::default();
        let all = Defaults { gpu_layers: Some(Layers::All), ..Defaults::default() };
        let mut with = entry("a", cpu("x", 2, None), model(28), "chat", 1);
        with.key.defaults = all.clone();
        record.put(with);
        let found = |record: &TuningRecord, defaults: &Defaults| {
            let found = record.lookup("a", defaults, &cpu("x", 2, None), &model(28), None);
            found.map(|entry| entry.chosen.poll)
        };
        assert_eq!(found(&record, &all), Ok(Some(1)));
        let miss = found(&record, &Defaults::default()).unwrap_err();
        assert_eq!(miss, Miss::Defaults { found: all.clone() });
        assert!(miss.to_string().ends_with("(gpu_layers all)"), "{miss}");
        record.put(entry("a", cpu("x", 2, None), model(28), "chat", 2));
        assert_eq!((found(&record, &all), found(&record, &Defaults::default())), (Ok(Some(1)), Ok(Some(2))));
    }

    #[test]
    fn a_new_entry_takes_the_place_of_the_old_one_and_is_the_newest() {
        let mut record = TuningRecord::default();
        for (objective, poll) in [("chat", 1), ("rag", 2), ("chat", 3)] {
            record.put(entry("a", cpu("x", 2, None), model(28), objective, poll));
        }
        assert_eq!(record.entries.len(), 2);
        let newest = record.lookup("a", &Defaults::default(), &cpu("x", 2, None), &model(28), None).unwrap();
        assert_eq!(newest.chosen.poll, Some(3));
    }

    #[test]
    fn what_is_merged_stands_behind_what_was_measured_here() {
        let of =
            |build: &str, objective: &str, poll| entry(build, cpu("x", 2, None), model(28), objective, poll);
        let mut record = TuningRecord::default();
        record.put(of("a", "chat", 1));
        let others = [of("a", "chat", 7), of("a", "rag", 8), of("b", "chat", 9), of("a", "rag", 10)];
        assert_eq!(record.merge(others.clone()), 2);
        assert_eq!(record.merge(others), 0);
        let found = |build, objective: Option<&str>| {
            let found = record.lookup(build, &Defaults::default(), &cpu("x", 2, None), &model(28), objective);
            found.map(|entry| entry.chosen.poll)
        };
        assert_eq!(found("a", Some("chat")), Ok(Some(1)));
        assert_eq!(found("a", None), Ok(Some(1)));
        assert_eq!(found("a", Some("rag")), Ok(Some(8)));
        assert_eq!(found("b", None), Ok(Some(9)));
    }

    #[test]
    fn what_is_written_is_read_back_and_damage_and_newer_ones_are_named() {
        let mut record = TuningRecord::default();
        record.put(entry("a", cpu("x", 2, Some(1.5)), model(28), "chat", 1));
        let text = serde_json::to_string(&record).unwrap();
        assert_eq!(TuningRecord::parse(text.as_bytes()).unwrap(), record);
        // A later minor version may contain unknown fields.
        let later = text.replace("\"1.1\"", "\"1.7\"").replace("\"entries\"", "\"more\":[1],\"entries\"");
        assert_eq!(TuningRecord::parse(later.as_bytes()).unwrap().entries, record.entries);
        let newer = TuningRecord::parse(text.replace("\"1.1\"", "\"2.0\"").as_bytes()).unwrap_err();
        assert!(matches!(&newer, TuningError::Newer { found } if found == "2.0"), "{newer}");
        for wrong in
            ["", "{", "[]", "{\"schema_version\":7}", "{\"schema_version\":\"1.0\"}", &text[..text.len() / 2]]
        {
            let error = TuningRecord::parse(wrong.as_bytes()).unwrap_err();
            assert!(matches!(error, TuningError::Damaged(_)), "{wrong}: {error}");
        }
    }

    #[test]
    fn what_was_decided_is_named_and_nothing_else() {
        let chosen = Chosen { repack: Some(false), decode_threads: Some(3), ..Chosen::default() };
        assert_eq!(chosen.named(), [("threads", "3".to_string()), ("repack", "off".to_string())]);
        assert!(Chosen::default().is_default() && !chosen.is_default());
    }
}
