//! The one file that a check writes. docs/src/build/gpu-check.md tells its fields.

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

/// Version of the format: the first number changes where a field means something else.
pub const SCHEMA_VERSION: &str = "1.1";

/// All of it. Written after every step, so that what is there when a machine goes away is kept.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// When, how it is repeated, on what: first, as in every file of measurements.
    #[serde(flatten)]
    pub provenance: Provenance,
    /// Version of this format, `major.minor`.
    pub schema_version: String,
    /// Seconds that it was to take at most.
    pub budget_seconds: f64,
    /// Seconds that it took until now.
    pub seconds: f64,
    /// Whether the CPU had to do: then it is a rehearsal, and no figure says anything.
    pub rehearsal: bool,
    /// Why it is not complete, where it was stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped: Option<String>,
    /// What the archive holds that this ran from; absent where it ran from a checkout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub archive: Option<Contents>,
    /// The machine, without its name.
    pub host: Host,
    /// What was wrong with it.
    pub host_warnings: Vec<String>,
    /// Its NVIDIA cards, as the driver tells them.
    pub cards: Vec<Card>,
    /// What `anneal info --json` says of devices, backends and the driver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub info: Option<Value>,
    /// The engine.
    pub anneal: ProgramReport,
    /// llama.cpp's own bench; absent where it was not packed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub llama_bench: Option<ProgramReport>,
    /// Why there is no llama-bench.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub llama_bench_missing: Option<String>,
    /// How it ended without a GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<Refusal>,
    /// The models, in the order in which they were named.
    pub models: Vec<ModelReport>,
    /// Pairs of runs of the first model, with a switch on and off.
    pub pairs: Vec<Pair>,
    /// The long run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub long: Option<Long>,
    /// What is to be reached, and whether it was.
    pub figures: Vec<Figure>,
    /// Steps that were carried out, in order.
    pub steps: Vec<Done>,
    /// Steps that were not, and why.
    pub left_out: Vec<LeftOut>,
}

/// A program.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ProgramReport {
    /// Name of its file.
    pub name: String,
    /// Its size.
    pub bytes: Bytes,
    /// Digest of the file.
    pub sha256: Sha256,
    /// Its record, where it lies beside it: plan, sources, toolkit, architectures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build: Option<Box<BuildInfo>>,
}

/// How the program ended where `CUDA_VISIBLE_DEVICES` was empty.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Refusal {
    /// Its exit code.
    pub code: Option<i32>,
    /// What it should be.
    pub expected: i32,
    /// What it said.
    pub said: String,
}

/// A model and what was measured of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ModelReport {
    /// Shape and type of the weights.
    pub name: Synthetic,
    /// Size of its tensors; of one that is not there about.
    pub bytes: Bytes,
    /// Weights that are read for one token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_token: Option<Bytes>,
    /// Why it was not looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped: Option<String>,
    /// Where it lies and computes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
    /// Whether it says the same twice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub determinism: Option<Determinism>,
    /// Every run of a bench, in order.
    pub runs: Vec<Run>,
    /// Settings that our bench and llama-bench did not have in common.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub differing_settings: Vec<Differing>,
    /// Steady decodes.
    pub decodes: Vec<Decode>,
    /// What follows of the runs.
    pub comparisons: Vec<ProgramComparison>,
}

impl ModelReport {
    /// One of which nothing is known but its size.
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

/// Where a model lies and computes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Placement {
    /// Whether devices hold and compute all but the input's embeddings.
    pub full: bool,
    /// What does not.
    pub faults: Vec<String>,
    /// What `anneal info --placement --json` told.
    pub told: Value,
}

/// Two generations that should be equal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Determinism {
    /// Tokens of each.
    pub tokens: usize,
    /// Those before the first that differs; all where none does.
    pub equal: usize,
    /// Digest of the first run's tokens.
    pub digest: Sha256,
}

/// Which program ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Who {
    /// `anneal bench`.
    Anneal,
    /// llama-bench.
    LlamaBench,
}

/// One run of a bench.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Counted from 1: both programs run once in each.
    pub round: u32,
    /// Which program.
    pub by: Who,
    /// Its tests.
    pub rows: Vec<GpuBenchRow>,
    /// Its settings.
    pub settings: Map<String, Value>,
}

/// A setting that both programs tell, and differently.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Differing {
    /// llama-bench's name of it.
    pub setting: String,
    /// Our value.
    pub anneal: Value,
    /// Theirs.
    pub llama_bench: Value,
}

/// How the host waits until the GPU is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Wait {
    /// It asks over and over, which keeps a core busy: what CUDA does by default.
    Spin,
    /// It sleeps until it is woken.
    Block,
}

impl Wait {
    /// As the engine has it.
    pub fn name(self) -> &'static str {
        match self {
            Wait::Spin => "spin",
            Wait::Block => "block",
        }
    }
}

/// One steady decode, from its first token to its last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decode {
    /// The round that it is of, where it is of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round: Option<u32>,
    /// Whether the device was to choose the token.
    pub device_sampling: bool,
    /// Whether CUDA graphs were used.
    pub graphs: bool,
    /// How the host was to wait for the GPU, where it was said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait: Option<Wait>,
    /// Tokens that were asked for.
    pub tokens: u32,
    /// Tokens a second of decode, as the program tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_second: Option<f64>,
    /// Tokens that the device chose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chosen_on_device: Option<u32>,
    /// Digest of the text.
    pub text: Sha256,
    /// CPUs that the process kept busy: 1 is one core.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<f64>,
    /// Speed in equal parts of the run.
    pub pace: Vec<Pace>,
    /// All that it used: CPU time, each core of the machine, each GPU.
    pub usage: Usage,
}

/// The speed of a part of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pace {
    /// Its end, in seconds since the first token.
    pub seconds: f64,
    /// Tokens until then, by the bytes of their text.
    pub tokens: f64,
    /// Tokens a second in it.
    pub tokens_per_second: f64,
}

/// Two decodes one after the other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pair {
    /// What differs.
    pub switch: Switch,
    /// With it; of waiting, blocked.
    pub on: Decode,
    /// Without it; of waiting, spinning.
    pub off: Decode,
}

/// The long run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Long {
    /// The model.
    pub model: Synthetic,
    /// Tokens that it should have had.
    pub wanted: u32,
    /// What was seen.
    pub decode: Decode,
}

/// How tokens are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sampling {
    /// Not at all: any tokens are evaluated, as llama-bench does it.
    None,
    /// By the default samplers, from text to text; where they run is the engine's to say, and on a GPU that is mostly there.
    Default,
    /// The likeliest, found on the host.
    GreedyOnHost,
    /// The likeliest, found on the device.
    GreedyOnDevice,
}

impl Sampling {
    /// Words behind a test's name, and nothing where there is none.
    pub fn words(self) -> &'static str {
        match self {
            Sampling::None => "",
            Sampling::Default => ", with the default samplers",
            Sampling::GreedyOnHost => ", greedy",
            Sampling::GreedyOnDevice => ", greedy on the device",
        }
    }
}

/// A test of both programs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProgramComparison {
    /// llama-bench's name of it.
    pub test: String,
    /// How ours chose tokens; theirs chooses none.
    pub sampling: Sampling,
    /// Median of our rounds, in tokens a second; a round's value is the median of its repetitions.
    pub anneal: f64,
    /// Median of llama-bench's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub llama_bench: Option<f64>,
    /// Ours to theirs, round by round.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio: Option<Ratio>,
}

/// Something to be reached.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// What.
    pub what: String,
    /// Of which model, where it is one's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<Synthetic>,
    /// What was to be reached, in words: `≥ 1.0`.
    pub goal: String,
    /// What was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<f64>,
    /// Whether that is enough.
    pub verdict: FigureVerdict,
    /// What else is to be said of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Of a share of bandwidth: bytes a second that decode reads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effective_bandwidth: Option<f64>,
    /// Of a share of bandwidth: what the card's clock and bus come to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub theoretical_bandwidth: Option<f64>,
    /// Of a share of bandwidth: what the card was measured to copy from its memory to its memory, in bytes read and written a
    /// second; absent where the engine does not measure it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured_copy_bandwidth: Option<f64>,
}

/// Whether a figure was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FigureVerdict {
    /// It was.
    Pass,
    /// It was not.
    Miss,
    /// Not shown either way.
    Unclear,
    /// Nothing was measured that tells.
    NotMeasured,
    /// There is nothing to be reached.
    Told,
}

impl FigureVerdict {
    /// As tables have it.
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

/// A step that was carried out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Done {
    /// Which.
    pub step: String,
    /// Seconds that it took.
    pub seconds: f64,
    /// Seconds that were expected.
    pub expected: f64,
    /// Why it failed, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A step that was not.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LeftOut {
    /// Which.
    pub step: String,
    /// Why.
    pub reason: String,
}
