//! Arguments of `anneal bench`.

use std::path::PathBuf;
use std::str::FromStr;

use engine_core::settings::{BATCH, OPTIONS, POLL, THREADS};
use llama::options::{FlashAttention, KvType, LoadMode};
use tune::bench::parts::Part;
use tune::tuner::Objective;

use super::lists::{self, Numbers, numbers};
use super::quants::flags::Flags as QuantFlags;
use crate::commands::flags::{DeviceFlags, LoadFlags, PlacementFlags, VariantFlags};
use crate::commands::hub::HubFlags;
use crate::commands::option_flags::help_with_default;
use crate::commands::speculative::Refused;
use crate::commands::table::Format;

/// Description of the valid token counts of a test, for error messages.
const TOKENS: &str = "0 or more tokens, as a list: 0,128,512";

/// Measure prefill and decode speed with llama-bench's method
///
/// Separate list values with commas. Write ranges of numbers as 1-8, 1-8+2 (every second number) or 1-8*2 (doubling).
/// Every combination of values is measured. Each result is printed to stdout as soon as it is complete, with
/// llama-bench's field names.
#[derive(clap::Args, Debug)]
#[command(after_help = crate::commands::LLAMA_FLAGS_HELP)]
pub struct Args {
    /// GGUF models
    #[arg(short, long, value_name = "LIST", required_unless_present_any = ["roofline", "hf"])]
    pub(super) model: Vec<PathBuf>,
    #[command(flatten)]
    pub(super) hub: HubFlags,
    /// Prompt lengths in tokens; 0 for none
    #[arg(short = 'p', long, value_name = "LIST", value_delimiter = ',', default_value = "512", value_parser = numbers(TOKENS))]
    pub(super) n_prompt: Vec<Numbers>,
    /// Generation lengths in tokens; 0 for none
    #[arg(short = 'n', long, value_name = "LIST", value_delimiter = ',', default_value = "128", value_parser = numbers(TOKENS))]
    pub(super) n_gen: Vec<Numbers>,
    /// Prompt and generation lengths in tokens, for a combined test; can be repeated
    #[arg(long, visible_alias = "pg", value_name = "P,G", value_parser = pair)]
    pub(super) prompt_gen: Vec<(u32, u32)>,
    /// Number of tokens that are already in the context when a test starts; cannot be used with --end-to-end
    #[arg(short = 'd', long, value_name = "LIST", value_delimiter = ',', default_value = "0", value_parser = numbers(TOKENS))]
    pub(super) n_depth: Vec<Numbers>,
    #[arg(help = of_table("batch-size"), short = 'b', long, value_name = "LIST", value_delimiter = ',', value_parser = numbers(BATCH))]
    pub(super) batch_size: Vec<Numbers>,
    #[arg(help = of_table("ubatch-size"), long, visible_alias = "ub", value_name = "LIST", value_delimiter = ',', value_parser = numbers(BATCH))]
    pub(super) ubatch_size: Vec<Numbers>,
    #[arg(help = of_table("cache-type-k"), long, visible_alias = "ctk", value_name = "LIST", value_delimiter = ',')]
    pub(super) cache_type_k: Vec<KvType>,
    #[arg(help = of_table("cache-type-v"), long, visible_alias = "ctv", value_name = "LIST", value_delimiter = ',')]
    pub(super) cache_type_v: Vec<KvType>,
    #[arg(help = of_table("flash-attn"), long, visible_alias = "fa", value_name = "LIST", value_delimiter = ',', value_parser = lists::flash_attention)]
    pub(super) flash_attn: Vec<FlashAttention>,
    /// Number of threads for prefill and decode; with several values, a chart below the table compares the speeds
    /// [default: as for `anneal run`]
    #[arg(short = 't', long, value_name = "LIST", value_delimiter = ',', value_parser = numbers(THREADS))]
    pub(super) threads: Vec<Numbers>,
    /// Number of threads for prefill, if different from -t
    #[arg(long, visible_alias = "tb", value_name = "LIST", value_delimiter = ',', value_parser = numbers(THREADS))]
    pub(super) threads_batch: Vec<Numbers>,
    #[arg(help = of_table("poll"), long, value_name = "LIST", value_delimiter = ',', value_parser = numbers(POLL))]
    pub(super) poll: Vec<Numbers>,
    #[arg(help = of_table("load-mode"), long, visible_alias = "lm", value_name = "LIST", value_delimiter = ',', value_parser = lists::load_mode)]
    pub(super) load_mode: Vec<LoadMode>,
    /// Repack weights for the CPU's kernels: on, off [default: on]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = lists::on_off, conflicts_with = "no-repack")]
    pub(super) repack: Vec<bool>,
    /// Replace the defaults with the settings that `anneal tune` found for this purpose: chat, rag, batch,
    /// latency, or P:G (prompt and answer tokens); requires a single model
    #[arg(long, value_name = "PURPOSE", conflicts_with_all = ["roofline", "parts", "quants"])]
    pub(super) tuned: Option<Objective>,
    /// Tuning record for --tuned [default: $ANNEAL_TUNING, else tuning.json in the state folder]
    #[arg(long, value_name = "FILE", requires = "tuned")]
    pub(super) tuning: Option<PathBuf>,
    /// Number of samples per test
    #[arg(short = 'r', long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) repetitions: u32,
    /// Skip the warm-up run before the samples
    #[arg(long)]
    pub(super) no_warmup: bool,
    /// Measure the whole path from prompt text to answer text: tokenisation, prefill, sampling and decode. Runs the -pg
    /// tests, or every combination of -p and -n
    #[arg(long)]
    pub(super) end_to_end: bool,
    /// Add the time per output token and the load time to the table; --end-to-end always shows both
    #[arg(long)]
    pub(super) latency: bool,
    /// Time only these parts instead of running llama-bench's tests: prefill and decode (with the sizes from -p,
    /// -n and -d), tokenize, detokenize, sample, greedy, load, vocab, gguf
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        conflicts_with_all = ["end_to_end", "prompt_gen"]
    )]
    pub(super) parts: Vec<Part>,
    /// Time each kind of CPU operation in the -p and -n tests, and show the percentage of the roofline that it reaches
    #[arg(
        long,
        conflicts_with_all = ["end_to_end", "prompt_gen", "parts", "latency", "roofline", "quants"]
    )]
    pub(super) ops: bool,
    /// UTF-8 text file for --parts [default: built-in text: prose, code, numbers and eight writing systems]
    #[arg(long, value_name = "FILE", requires = "parts")]
    pub(super) text: Option<PathBuf>,
    /// Measure and save this machine's read bandwidth and multiply-add rates for each thread count in -t; later tests
    /// then show their speed as a percentage of these limits
    #[arg(long, conflicts_with_all = ["model", "hf", "end_to_end", "parts", "prompt_gen"])]
    pub(super) roofline: bool,
    /// Do not save the result of --roofline
    #[arg(long, requires = "roofline", conflicts_with = "model")]
    pub(super) no_save: bool,
    /// Output format: md, json, jsonl, csv or sql
    #[arg(short, long, value_name = "FORMAT", default_value = "md")]
    pub(super) output: Format,
    #[command(flatten)]
    pub(super) quants: QuantFlags,
    #[command(flatten)]
    pub(super) placing: PlacementFlags,
    #[command(flatten)]
    pub(super) variant: VariantFlags,
    #[command(flatten)]
    pub(super) load: LoadFlags,
    #[command(flatten)]
    pub(super) offload: DeviceFlags,
    #[command(flatten)]
    pub(super) drafts: Refused,
}

/// Returns the help text of the option `name`, for a flag that accepts a list of its values.
///
/// # Panics
/// If the option does not exist.
fn of_table(name: &str) -> String {
    OPTIONS.iter().find(|option| option.name == name).map(help_with_default).expect("an option of the table")
}

fn pair(text: &str) -> Result<(u32, u32), String> {
    let number = |text: &str| u32::from_str(text.trim()).ok();
    let numbers = text.split_once(',').and_then(|(prompt, gen_)| Some((number(prompt)?, number(gen_)?)));
    numbers.ok_or_else(|| format!("{text:?} is not a pair of lengths\nhint: write a pair such as 512,128"))
}
