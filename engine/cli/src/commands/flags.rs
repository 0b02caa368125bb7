//! Flags that several commands share, and what they ask of the settings.

use std::path::{Path, PathBuf};

use build_info::Policy;
use engine_core::live::Live;
use engine_core::settings::Requested;
use engine_core::tuning;
use llama::options::{Affinity, DeviceSampling, FlashAttention, KvType, LoadMode, RequireGpu, SplitLayout};
use llama::variant::Variant;
use tune::tuner::Objective;

use super::sampling::number;

/// What can be given for threads.
pub const THREADS: &str = "1 to 512, or leave it out to take what the machine offers";

/// What can be given for a batch.
pub const BATCH: &str = "1 to 1048576";

/// What can be given for waiting.
pub const POLL: &str = "0 (sleep) to 100 (spin)";

/// What can be given for a context.
const CONTEXT: &str = "1 to 268435456, or 0 for what the model was trained for";

/// Reads a whole number; what is none is answered with `range`, the values there are in words.
pub fn whole(range: &'static str) -> impl Fn(&str) -> Result<u32, String> + Clone + Send + Sync + 'static {
    move |text| text.parse().map_err(|_| format!("use {range}"))
}

/// Threads and where they run.
#[derive(clap::Args, Debug, Default)]
#[command(next_help_heading = "Threads")]
pub struct ThreadFlags {
    /// Threads that generate tokens [default: the policy's share of the cores]
    #[arg(short = 't', long, value_name = "N", value_parser = whole(THREADS))]
    pub threads: Option<u32>,
    /// Threads that evaluate the prompt [default: -t if given, else every core]
    #[arg(long, visible_alias = "tb", value_name = "N", value_parser = whole(THREADS))]
    pub threads_batch: Option<u32>,
    #[command(flatten)]
    pub placing: PlacingFlags,
    /// How eagerly threads wait for work, 0 (sleep) to 100 (spin) [default: 50]
    #[arg(long, value_name = "N", value_parser = whole(POLL))]
    pub poll: Option<u32>,
}

/// Where threads run.
#[derive(clap::Args, Debug, Default)]
#[command(next_help_heading = "Threads")]
pub struct PlacingFlags {
    /// Share of the cores that decode takes: max, balanced, shared or debug [default: balanced]
    #[arg(long, value_name = "POLICY")]
    pub policy: Option<Policy>,
    /// Bind threads to CPUs: on (one each), off, or auto (only on hybrid CPUs, to the performance cores)
    /// [default: auto]
    #[arg(long, value_name = "WHEN", conflicts_with = "no_affinity")]
    pub affinity: Option<Affinity>,
    /// The same as --affinity off
    #[arg(long)]
    pub no_affinity: bool,
    /// CPUs to bind threads to, as in 0-3,8; implies --affinity on
    #[arg(long, value_name = "LIST", value_parser = cpu_list)]
    pub cpu_list: Option<CpuList>,
    /// Threads of the BLAS library in a build that has one; 0 takes as many as the phase has [default: 1]
    #[arg(long, value_name = "N")]
    pub blas_threads: Option<u32>,
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
    pub fn look_up(&self, path: &Path, variant: &Variant, live: &Live) -> Option<Requested> {
        if self.no_tuning {
            return None;
        }
        let objective = self.objective.as_ref().map(ToString::to_string);
        let found = tuning::look_up(self.tuning.as_deref(), path, variant, objective.as_deref(), live);
        found.warnings.iter().for_each(|warning| llama::notice::warn(warning));
        found.tuned
    }
}

/// A list of CPUs; a type of its own, since clap takes a bare `Vec` for a repeated flag.
#[derive(Clone, Debug)]
pub struct CpuList(Vec<u32>);

/// How the weights lie in memory.
#[derive(clap::Args, Debug, Default)]
#[command(next_help_heading = "Model")]
pub struct LoadFlags {
    /// Leave the weights as they are in the file: less memory, slower decode, and prefill often faster: measure
    #[arg(long)]
    pub no_repack: bool,
    /// Leave out ggml's tiled kernels, which evaluate prompts on weights that are not repacked
    #[arg(long)]
    pub no_tiled: bool,
    /// Do not ask for huge pages, in a build that does
    #[arg(long)]
    pub no_huge_pages: bool,
    /// Load these kernels of those that lie beside the program, in a build that has some (`anneal info` lists them)
    #[arg(long, value_name = "NAME")]
    pub cpu_variant: Option<String>,
    /// Let llama.cpp's log through to stderr
    #[arg(short, long)]
    pub verbose: bool,
    #[command(flatten)]
    pub require: RequireFlag,
}

/// Whether a GPU must do the work.
#[derive(clap::Args, Clone, Debug, Default)]
#[command(next_help_heading = "Devices")]
pub struct RequireFlag {
    /// Refuse to run, with exit code 69, where no GPU came up or nothing of the model is on one; full: where a layer, a
    /// part of the KV cache or an operation that generates tokens is on the host. `anneal info --placement` shows where
    /// they are [default: yes in a build for a GPU, else no]
    #[arg(
        long,
        value_name = "yes|full|no",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "yes"
    )]
    pub require_gpu: Option<RequireGpu>,
}

impl RequireFlag {
    /// Adds what it asks for.
    pub fn ask(&self, requested: &mut Requested) {
        requested.require_gpu = self.require_gpu;
    }
}

/// Weights in two layouts. Not a part of [`LoadFlags`]: only commands that evaluate a prompt and generate obey them.
#[derive(clap::Args, Debug, Default)]
#[command(next_help_heading = "Model")]
pub struct SplitFlags {
    /// Evaluate prompts with the weights as they are in the file and generate with repacked ones: auto (where a
    /// measurement on this machine has shown that it is faster), on or off [default: auto]
    #[arg(long, value_name = "WHEN")]
    pub split_layout: Option<SplitLayout>,
    /// Tokens of the shortest prompt that the split layout is used for [default: 64]
    #[arg(long, value_name = "N", value_parser = whole("1 or more tokens"))]
    pub split_from: Option<u32>,
}

/// The context, and how the model is loaded: what `bench` takes lists of.
#[derive(clap::Args, Debug, Default)]
#[command(next_help_heading = "Context")]
pub struct ContextFlags {
    /// Tokens the context holds; 0 takes what the model was trained for [default: 4096, or that if it is less]
    #[arg(short = 'c', long, value_name = "N", value_parser = whole(CONTEXT))]
    pub ctx_size: Option<u32>,
    /// Tokens evaluated in one call [default: 2048]
    #[arg(short = 'b', long, value_name = "N", value_parser = whole(BATCH))]
    pub batch_size: Option<u32>,
    /// Tokens evaluated in one graph [default: 512]
    #[arg(long, visible_alias = "ub", value_name = "N", value_parser = whole(BATCH))]
    pub ubatch_size: Option<u32>,
    /// Type of the K cache: f32, f16, bf16, q8_0, q5_0, q5_1, q4_0, q4_1 or iq4_nl [default: f16]
    #[arg(long, visible_alias = "ctk", value_name = "TYPE")]
    pub cache_type_k: Option<KvType>,
    /// Type of the V cache; a quantised one needs flash attention [default: f16]
    #[arg(long, visible_alias = "ctv", value_name = "TYPE")]
    pub cache_type_v: Option<KvType>,
    /// Flash attention: auto, on or off [default: auto]
    #[arg(long, visible_alias = "fa", value_name = "MODE")]
    pub flash_attn: Option<FlashAttention>,
    /// How to load: auto, none, mmap, mlock, mmap_mlock or direct_io [default: auto]
    #[arg(long, visible_alias = "lm", value_name = "MODE", help_heading = "Model")]
    pub load_mode: Option<LoadMode>,
}

/// How tokens are chosen.
#[derive(clap::Args, Debug, Default)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingFlags {
    /// Temperature; 0 is --greedy [default: 0.8]
    #[arg(long, visible_alias = "temperature", value_name = "X", value_parser = number("temperature"))]
    pub temp: Option<f64>,
    /// Keep the N most likely tokens; 0 keeps all [default: 40]
    #[arg(long, value_name = "N", value_parser = number("top_k"))]
    pub top_k: Option<f64>,
    /// Keep the most likely tokens up to this probability in all [default: 0.95]
    #[arg(long, value_name = "P", value_parser = number("top_p"))]
    pub top_p: Option<f64>,
    /// Keep tokens at least P times as likely as the best [default: 0.05]
    #[arg(long, value_name = "P", value_parser = number("min_p"))]
    pub min_p: Option<f64>,
    /// Seed; the same seed on the same build and threads gives the same text [default: random]
    #[arg(long, value_name = "N", value_parser = whole("0 to 4294967295, or leave it out for a random one"))]
    pub seed: Option<u32>,
    /// Always take the most likely token
    #[arg(long)]
    pub greedy: bool,
    /// Let the device that computes the logits choose by them, as far as it can, so that a GPU sends a token in place of a row
    /// of logits: auto (where that is not the CPU), on (also on the CPU) or off [default: auto]
    #[arg(long, value_name = "MODE", num_args = 0..=1, default_missing_value = "on")]
    pub device_sampling: Option<DeviceSampling>,
}

impl ThreadFlags {
    /// Adds what these flags ask for.
    pub fn ask(&self, requested: &mut Requested) {
        requested.decode_threads = self.threads;
        requested.prefill_threads = self.threads_batch;
        requested.poll = self.poll;
        self.placing.ask(requested);
    }
}

impl PlacingFlags {
    /// Adds what these flags ask for.
    pub fn ask(&self, requested: &mut Requested) {
        requested.policy = self.policy;
        requested.affinity = if self.no_affinity { Some(Affinity::Off) } else { self.affinity };
        requested.cpus = self.cpu_list.clone().map(|list| list.0);
        requested.blas_threads = self.blas_threads;
    }
}

impl LoadFlags {
    /// Adds what these flags ask for.
    pub fn ask(&self, requested: &mut Requested) {
        requested.repack = self.no_repack.then_some(false);
        requested.tiled = self.no_tiled.then_some(false);
        requested.huge_pages = self.no_huge_pages.then_some(false);
        requested.cpu_variant = self.cpu_variant.clone();
        self.require.ask(requested);
    }
}

impl SplitFlags {
    /// Adds what these flags ask for.
    pub fn ask(&self, requested: &mut Requested) {
        requested.split_layout = self.split_layout;
        requested.split_from = self.split_from;
    }
}

impl ContextFlags {
    /// Adds what these flags ask for.
    pub fn ask(&self, requested: &mut Requested) {
        requested.n_ctx = self.ctx_size;
        requested.n_batch = self.batch_size;
        requested.n_ubatch = self.ubatch_size;
        requested.type_k = self.cache_type_k;
        requested.type_v = self.cache_type_v;
        requested.flash_attention = self.flash_attn;
        requested.load_mode = self.load_mode;
    }
}

impl SamplingFlags {
    /// Adds what these flags ask for.
    pub fn ask(&self, requested: &mut Requested) {
        requested.greedy = self.greedy.then_some(true);
        requested.temperature = self.temp.map(|value| value as f32);
        requested.top_k = self.top_k.map(|value| value as u32);
        requested.top_p = self.top_p.map(|value| value as f32);
        requested.min_p = self.min_p.map(|value| value as f32);
        requested.seed = self.seed;
        requested.device_sampling = self.device_sampling;
    }
}

/// `0-3,8` as numbers.
fn cpu_list(text: &str) -> Result<CpuList, String> {
    let wrong = || format!("{text:?} is no list of CPUs: write it as 0-3,8");
    let number = |text: &str| text.trim().parse::<u32>().map_err(|_| wrong());
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let (first, last) = match part.split_once('-') {
            Some((first, last)) => (number(first)?, number(last)?),
            None => (number(part)?, number(part)?),
        };
        if first > last || last > 65_535 {
            return Err(wrong());
        }
        cpus.extend(first..=last);
    }
    cpus.sort_unstable();
    cpus.dedup();
    Ok(CpuList(cpus))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_list_is_ranges_and_numbers() {
        let cases =
            [("0", Some(vec![0])), ("0-3,8", Some(vec![0, 1, 2, 3, 8])), ("4,0-1,1", Some(vec![0, 1, 4]))];
        for (text, expected) in cases {
            assert_eq!(cpu_list(text).ok().map(|list| list.0), expected, "{text:?}");
        }
        for text in ["", "a", "3-1", "0,", "-1", "0-4000000000"] {
            assert!(cpu_list(text).is_err(), "{text:?} was taken");
        }
    }
}
