//! Flags that several commands share, and the settings that the flags request.

use std::path::{Path, PathBuf};

use engine_core::runtime_host::RuntimeHost;
use engine_core::settings::{OPTIONS, Requested};
use engine_core::tuning;
use llama::variant::Variant;
use tune::tuner::Objective;

use super::option_flags::option_flags;

/// Returns a parser for an unsigned integer. Error messages show `range`, which describes the valid values.
pub fn whole(range: &'static str) -> impl Fn(&str) -> Result<u32, String> + Clone + Send + Sync + 'static {
    move |text| text.parse().map_err(|_| format!("use {range}"))
}

option_flags! {
    /// Flags for threads and their placement.
    ThreadFlags: Requested = OPTIONS, Threads Placement
}
option_flags! {
    /// Flags for the CPUs that threads run on.
    PlacementFlags: Requested = OPTIONS, Placement
}
option_flags! {
    /// Flags for the layout of the weights in memory.
    LayoutFlags: Requested = OPTIONS, Loading
}
option_flags! {
    /// Flags for the context and the load mode. `bench` accepts lists of these values instead.
    ContextFlags: Requested = OPTIONS, Context LoadMode
}
option_flags! {
    /// Flags for GPUs and other devices, on this machine and on workers.
    DeviceFlags: Requested = OPTIONS, Devices
}
option_flags! {
    /// Flag that makes a command refuse to run without a GPU.
    RequireFlag: Requested = OPTIONS, RequireGpu
}
option_flags! {
    /// Flags for adapters and RoPE scaling, which make the model differ from its file.
    VariantFlags: Requested = OPTIONS, Adapters Rope
}
option_flags! {
    /// Flags for the sampling options that are also settings.
    SamplingFlags: Requested = OPTIONS, Sampling
}

/// Flags for loading the weights.
#[derive(clap::Args, Debug, Default)]
pub struct LoadFlags {
    #[command(flatten)]
    pub layout: LayoutFlags,
    /// Print llama.cpp's log to stderr
    #[arg(short, long, help_heading = "Model")]
    pub verbose: bool,
    #[command(flatten)]
    pub require: RequireFlag,
}

impl LoadFlags {
    /// Adds the values of these flags to `requested`.
    pub fn ask(&self, requested: &mut Requested) {
        self.layout.ask(requested);
        self.require.ask(requested);
    }
}

/// Flags for the tuning record.
#[derive(clap::Args, Clone, Debug, Default)]
#[command(next_help_heading = "Tuning")]
pub struct TuningFlags {
    /// Tuning record [default: $ANNEAL_TUNING, else tuning.json in the state folder]
    #[arg(long, value_name = "FILE")]
    pub tuning: Option<PathBuf>,
    /// Ignore the tuning record
    #[arg(long)]
    pub no_tuning: bool,
    /// Use the settings tuned for this purpose: chat, rag, batch, latency, or P:G (prompt and answer tokens)
    /// [default: the most recently tuned purpose]
    #[arg(long = "for", value_name = "PURPOSE")]
    pub objective: Option<Objective>,
}

impl TuningFlags {
    /// Returns the tuned settings for the model at `path`. `None` if the record has no settings for the model. Prints
    /// warnings to stderr.
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
