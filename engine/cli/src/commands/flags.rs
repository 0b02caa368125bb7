//! Flags that several commands share, and what they ask of the settings.

use std::path::{Path, PathBuf};

use engine_core::runtime_host::RuntimeHost;
use engine_core::settings::{OPTIONS, Requested};
use engine_core::tuning;
use llama::variant::Variant;
use tune::tuner::Objective;

use super::option_flags::option_flags;

/// Reads a whole number. The error lists `range`, the values that can be given, in words.
pub fn whole(range: &'static str) -> impl Fn(&str) -> Result<u32, String> + Clone + Send + Sync + 'static {
    move |text| text.parse().map_err(|_| format!("use {range}"))
}

option_flags! {
    /// Threads and where they run.
    ThreadFlags: Requested = OPTIONS, Threads Placement
}
option_flags! {
    /// CPUs that threads run on.
    PlacementFlags: Requested = OPTIONS, Placement
}
option_flags! {
    /// Layout of the weights in memory.
    LayoutFlags: Requested = OPTIONS, Loading
}
option_flags! {
    /// Weights in two layouts. Not a part of [`LoadFlags`]: only commands that evaluate a prompt and generate obey them.
    SplitFlags: Requested = OPTIONS, Split
}
option_flags! {
    /// The context, and how the model is loaded: what `bench` takes lists of.
    ContextFlags: Requested = OPTIONS, Context LoadMode
}
option_flags! {
    /// Devices beside the CPU, on this machine and at workers.
    DeviceFlags: Requested = OPTIONS, Devices
}
option_flags! {
    /// Refusal to run without a GPU.
    RequireFlag: Requested = OPTIONS, RequireGpu
}
option_flags! {
    /// Adapters and RoPE scaling: how a model differs from its file.
    VariantFlags: Requested = OPTIONS, Adapters Rope
}
option_flags! {
    /// Sampling, as far as the settings know of it.
    SamplingFlags: Requested = OPTIONS, Sampling
}

/// Loading of the weights.
#[derive(clap::Args, Debug, Default)]
pub struct LoadFlags {
    #[command(flatten)]
    pub layout: LayoutFlags,
    /// Let llama.cpp's log through to stderr
    #[arg(short, long, help_heading = "Model")]
    pub verbose: bool,
    #[command(flatten)]
    pub require: RequireFlag,
}

impl LoadFlags {
    /// Adds what these flags ask for.
    pub fn ask(&self, requested: &mut Requested) {
        self.layout.ask(requested);
        self.require.ask(requested);
    }
}

/// What `anneal tune` found.
#[derive(clap::Args, Clone, Debug, Default)]
#[command(next_help_heading = "Tuning")]
pub struct TuningFlags {
    /// Tuning record [default: $ANNEAL_TUNING, else tuning.json in the state folder]
    #[arg(long, value_name = "FILE")]
    pub tuning: Option<PathBuf>,
    /// Do not look at the tuning record
    #[arg(long)]
    pub no_tuning: bool,
    /// Take what was tuned for this purpose: chat, rag, batch, latency or P:G [default: what was tuned last]
    #[arg(long = "for", value_name = "PURPOSE")]
    pub objective: Option<Objective>,
}

impl TuningFlags {
    /// What the record says of the model at `path`; nothing where it says nothing. What the user should know of it goes
    /// to stderr.
    pub fn look_up(&self, path: &Path, variant: &Variant, runtime_host: &RuntimeHost) -> Option<Requested> {
        if self.no_tuning {
            return None;
        }
        let objective = self.objective.as_ref().map(ToString::to_string);
        let found =
            tuning::look_up(self.tuning.as_deref(), path, variant, objective.as_deref(), runtime_host);
        found.warnings.iter().for_each(|warning| llama::notice::warn(warning));
        found.tuned
    }
}
