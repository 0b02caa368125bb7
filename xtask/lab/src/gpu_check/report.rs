//! Report of a check, and the only file that the check writes. docs/src/build/gpu-check.md describes the fields.

use build::compare::Provenance;
use build::workload::Synthetic;
use build_info::{BuildInfo, Bytes, Host, Sha256};
use measure::cards::Card;
use measure::{Ratio, Usage};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::archive::Contents;
use super::bench::GpuBenchRow;
use super::plan::Switch;

/// Version of the format. The major version changes if the meaning of a field changes.
pub const SCHEMA_VERSION: &str = "1.1";

/// Report of a check. The report is written after every step, so that results survive if the machine disappears.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// Date, command and machine of the check. As in every file of measurements, this field comes first.
    #[serde(flatten)]
    pub provenance: Provenance,
    /// Version of this format, `major.minor`.
    pub schema_version: String,
    /// Time limit of the check in seconds.
    pub budget_seconds: f64,
    /// Seconds that the check has taken so far.
    pub seconds: f64,
    /// True for a rehearsal on the CPU, whose figures are meaningless.
    pub rehearsal: bool,
    /// Reason why the check stopped early; `None` if it is complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped: Option<String>,
    /// Contents of the archive that the check ran from; `None` if it ran from a checkout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub archive: Option<Contents>,
    /// Description of the machine, without its name.
    pub host: Host,
    /// Warnings about the machine.
    pub host_warnings: Vec<String>,
    /// NVIDIA GPUs of the machine, as the driver reports them.
    pub cards: Vec<Card>,
    /// Devices, backends and driver, as `anneal info --json` reports them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub info: Option<Value>,
    /// Engine that was checked.
    pub anneal: ProgramReport,
    /// llama.cpp's llama-bench; `None` if llama-bench was not packed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub llama_bench: Option<ProgramReport>,
    /// Reason why llama-bench is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub llama_bench_missing: Option<String>,
    /// Result of running the engine without a GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<Refusal>,
    /// Models, in the order in which the user listed them.
    pub models: Vec<ModelReport>,
    /// Pairs of runs of the first model, with a switch on and off.
    pub pairs: Vec<Pair>,
    /// Result of the long run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub long: Option<Long>,
    /// Figures with their goals and verdicts.
    pub figures: Vec<Figure>,
    /// Steps that were carried out, in order.
    pub steps: Vec<Done>,
    /// Steps that were left out, with the reasons.
    pub left_out: Vec<LeftOut>,
}

/// Program that was checked.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ProgramReport {
    /// Name of the program's file.
    pub name: String,
    /// Size of the file in bytes.
    pub bytes: Bytes,
    /// SHA-256 of the file.
    pub sha256: Sha256,
    /// Record of the program's build (plan, sources, toolkit, architectures), if the record is next to the program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build: Option<Box<BuildInfo>>,
}

/// Result of running the engine with an empty `CUDA_VISIBLE_DEVICES`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Refusal {
    /// Exit code of the engine; `None` if a signal ended it.
    pub code: Option<i32>,
    /// Expected exit code.
    pub expected: i32,
    /// Text that the engine printed.
    pub said: String,
}

/// Model and its measurements.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ModelReport {
    /// Shape and type of the weights.
    pub name: Synthetic,
    /// Size of the model's tensors; an estimate if the model was not made.
    pub bytes: Bytes,
    /// Bytes of weights that decode reads per token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_token: Option<Bytes>,
    /// Reason why the model was skipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped: Option<String>,
    /// Devices that store and compute the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
    /// Result of comparing two identical runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub determinism: Option<Determinism>,
    /// All runs of the bench programs, in order.
    pub runs: Vec<Run>,
    /// Settings in which `anneal bench` and llama-bench differ.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub differing_settings: Vec<Differing>,
    /// Steady decodes.
    pub decodes: Vec<Decode>,
    /// Comparisons derived from the runs.
    pub comparisons: Vec<ProgramComparison>,
}

impl ModelReport {
    /// Creates the report of a model before any measurement.
    pub fn new(name: Synthetic, bytes: Bytes) -> Self {
        Self {
            name,
            bytes,
            bytes_per_token: None,
            skipped: None,
            placement: None,
            determinism: None,
            runs: Vec::new(),
            differing_settings: Vec::new(),
            decodes: Vec::new(),
            comparisons: Vec::new(),
        }
    }
}

/// Devices that store and compute a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Placement {
    /// True if devices store and compute everything except the input embeddings.
    pub full: bool,
    /// Parts that are not on a device.
    pub faults: Vec<String>,
    /// Output of `anneal info --placement --json`.
    pub told: Value,
}

/// Comparison of two generations that should be equal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Determinism {
    /// Number of tokens of each generation.
    pub tokens: usize,
    /// Number of tokens before the first difference; all tokens if there is no difference.
    pub equal: usize,
    /// SHA-256 of the first run's tokens.
    pub digest: Sha256,
}

/// Program that ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Who {
    /// `anneal bench`.
    Anneal,
    /// llama-bench.
    LlamaBench,
}

/// Run of a bench program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Number of the round, starting at 1; both programs run once in each round.
    pub round: u32,
    /// Program that ran.
    pub by: Who,
    /// Tests of the run.
    pub rows: Vec<GpuBenchRow>,
    /// Settings of the run.
    pub settings: Map<String, Value>,
}

/// Setting with different values in the two programs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Differing {
    /// llama-bench's name of the setting.
    pub setting: String,
    /// Value that `anneal bench` reports.
    pub anneal: Value,
    /// Value that llama-bench reports.
    pub llama_bench: Value,
}

/// Method by which the host waits for the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Wait {
    /// The host polls, which keeps a core busy; CUDA's default.
    Spin,
    /// The host sleeps until it is woken.
    Block,
}

impl Wait {
    /// Returns the engine's name for the method.
    pub fn name(self) -> &'static str {
        match self {
            Wait::Spin => "spin",
            Wait::Block => "block",
        }
    }
}

/// Steady decode, from its first token to its last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decode {
    /// Number of the decode's round, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round: Option<u32>,
    /// True if the device was asked to choose the tokens.
    pub device_sampling: bool,
    /// True if CUDA graphs were used.
    pub graphs: bool,
    /// Method by which the host was told to wait for the GPU; `None` for the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait: Option<Wait>,
    /// Number of tokens that were requested.
    pub tokens: u32,
    /// Decode speed in tokens per second, as reported by the program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_second: Option<f64>,
    /// Number of tokens that the device chose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chosen_on_device: Option<u32>,
    /// SHA-256 of the text.
    pub text: Sha256,
    /// Number of CPUs that the process kept busy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<f64>,
    /// Speeds in equal parts of the run.
    pub pace: Vec<Pace>,
    /// Resources used by the decode: CPU time, each core of the machine, each GPU.
    pub usage: Usage,
}

/// Speed of a part of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pace {
    /// End of the part, in seconds since the first token.
    pub seconds: f64,
    /// Number of tokens generated by the end of the part, estimated from the bytes of text.
    pub tokens: f64,
    /// Tokens per second in this part.
    pub tokens_per_second: f64,
}

/// Pair of decodes that ran one after the other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pair {
    /// Switch in which the two decodes differ.
    pub switch: Switch,
    /// Decode with the switch on; for waiting, the decode in which the host sleeps.
    pub on: Decode,
    /// Decode with the switch off; for waiting, the decode in which the host polls.
    pub off: Decode,
}

/// Result of the long run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Long {
    /// Model that ran.
    pub model: Synthetic,
    /// Number of tokens that were requested.
    pub wanted: u32,
    /// Measurements of the run.
    pub decode: Decode,
}

/// Method by which tokens are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sampling {
    /// Tokens are not chosen: random tokens are evaluated, as in llama-bench.
    None,
    /// The default samplers choose tokens, from text to text. The engine decides where the samplers run; with a GPU,
    /// mostly on the device.
    Default,
    /// The host finds the most likely token.
    GreedyOnHost,
    /// The device finds the most likely token.
    GreedyOnDevice,
}

impl Sampling {
    /// Returns the words that follow the name of a test; empty without sampling.
    pub fn words(self) -> &'static str {
        match self {
            Sampling::None => "",
            Sampling::Default => ", with the default samplers",
            Sampling::GreedyOnHost => ", greedy",
            Sampling::GreedyOnDevice => ", greedy on the device",
        }
    }
}

/// Comparison of one test of both programs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProgramComparison {
    /// llama-bench's name of the test.
    pub test: String,
    /// Method by which the engine chose tokens; llama-bench chooses no tokens.
    pub sampling: Sampling,
    /// Median speed of the engine's rounds in tokens per second. The speed of a round is the median of its
    /// repetitions.
    pub anneal: f64,
    /// Median speed of llama-bench's rounds in tokens per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub llama_bench: Option<f64>,
    /// Speed of the engine divided by llama-bench's speed, paired by round.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio: Option<Ratio>,
}

/// Figure with its goal and verdict.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// Name of the figure.
    pub what: String,
    /// Model of the figure; `None` if the figure does not belong to a single model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<Synthetic>,
    /// Goal in words: `≥ 1.0`.
    pub goal: String,
    /// Measured value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<f64>,
    /// Verdict on the value.
    pub verdict: FigureVerdict,
    /// Remark on the value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// For a share of bandwidth: bytes per second that decode reads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effective_bandwidth: Option<f64>,
    /// For a share of bandwidth: bytes per second computed from the GPU's clock and bus width.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub theoretical_bandwidth: Option<f64>,
    /// For a share of bandwidth: bytes read and written per second by copies within the GPU's memory. `None` if the
    /// engine does not measure this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured_copy_bandwidth: Option<f64>,
}

/// Verdict on a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FigureVerdict {
    /// The goal was reached.
    Pass,
    /// The goal was missed.
    Miss,
    /// The measurements show neither a pass nor a miss.
    Unclear,
    /// The measurement that the verdict needs is missing.
    NotMeasured,
    /// There is no goal; the value is only reported.
    Told,
}

impl FigureVerdict {
    /// Returns the verdict's name for tables.
    pub fn name(self) -> &'static str {
        match self {
            FigureVerdict::Pass => "pass",
            FigureVerdict::Miss => "miss",
            FigureVerdict::Unclear => "unclear",
            FigureVerdict::NotMeasured => "not measured",
            FigureVerdict::Told => "told",
        }
    }
}

/// Step that was carried out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Done {
    /// Description of the step.
    pub step: String,
    /// Seconds that the step took.
    pub seconds: f64,
    /// Expected seconds of the step.
    pub expected: f64,
    /// Error, if the step failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Step that was skipped.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LeftOut {
    /// Description of the step.
    pub step: String,
    /// Reason why the step was skipped.
    pub reason: String,
}
