//! Arguments of `anneal bench`.

use std::path::PathBuf;
use std::str::FromStr;

use engine_core::settings::{BATCH, OPTIONS, POLL, THREADS};
use llama::options::{FlashAttention, KvType, LoadMode};
use tune::bench::parts::Part;
use tune::tuner::Objective;

use super::lists::{self, Numbers, numbers};
use super::quants::flags::Flags as QuantFlags;
use crate::commands::flags::{DeviceFlags, LoadFlags, PlacementFlags, SplitFlags, VariantFlags};
use crate::commands::hub::HubFlags;
use crate::commands::option_flags::help_with_default;
use crate::commands::speculative::Refused;
use crate::commands::table::Format;

/// Valid values for the numbers of tokens of a test, for error messages.
const TOKENS: &str = "0 or more tokens, as a list: 0,128,512";

/// Measure prefill and decode speed by llama-bench's method
///
/// Lists are separated by commas. Ranges of numbers are written 1-8, 1-8+2 or 1-8*2. Every combination is measured.
/// Results go to stdout, one test after the other, with llama-bench's field names.
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
    /// Numbers of tokens to generate; 0 for none
    #[arg(short = 'n', long, value_name = "LIST", value_delimiter = ',', default_value = "128", value_parser = numbers(TOKENS))]
    pub(super) n_gen: Vec<Numbers>,
    /// Test of a prompt followed by a generation, as PROMPT,GEN; can be repeated
    #[arg(long, visible_alias = "pg", value_name = "P,G", value_parser = pair)]
    pub(super) prompt_gen: Vec<(u32, u32)>,
    /// Tokens in the context before the test; not with --end-to-end
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
    /// Threads for both phases [default: those of run, for each phase]. With several values, a curve follows the
    /// table
    #[arg(short = 't', long, value_name = "LIST", value_delimiter = ',', value_parser = numbers(THREADS))]
    pub(super) threads: Vec<Numbers>,
    /// Threads for prefill, if different from -t
    #[arg(long, visible_alias = "tb", value_name = "LIST", value_delimiter = ',', value_parser = numbers(THREADS))]
    pub(super) threads_batch: Vec<Numbers>,
    #[arg(help = of_table("poll"), long, value_name = "LIST", value_delimiter = ',', value_parser = numbers(POLL))]
    pub(super) poll: Vec<Numbers>,
    #[arg(help = of_table("load-mode"), long, visible_alias = "lm", value_name = "LIST", value_delimiter = ',', value_parser = lists::load_mode)]
    pub(super) load_mode: Vec<LoadMode>,
    /// Repack weights for the CPU's kernels: on, off [default: on]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = lists::on_off, conflicts_with = "no-repack")]
    pub(super) repack: Vec<bool>,
    /// Start from the settings that `anneal tune` found for this purpose (chat, rag, batch, latency or P:G), not from
    /// the defaults; one model only
    #[arg(long, value_name = "PURPOSE", conflicts_with_all = ["roofline", "compare_layouts", "parts", "quants"])]
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
    /// Measure the whole path: from text through tokenizer, prefill, sampler and decode to text. Runs the tests of
    /// -pg, or every -p with every -n
    #[arg(long)]
    pub(super) end_to_end: bool,
    /// Add times per output token and the load time to the table; --end-to-end always shows them
    #[arg(long)]
    pub(super) latency: bool,
    /// Run each test with repacked weights, with the weights as in the file and with the split layout, interleaved
    /// and -r times each, and print the speed of the split layout relative to the others
    #[arg(long, requires = "end_to_end", conflicts_with = "split-layout")]
    pub(super) compare_layouts: bool,
    /// Time these parts of the work separately instead of running llama-bench's tests: prefill and decode (of the
    /// sizes -p, -n and -d), tokenize, detokenize, sample, greedy, load, vocab, gguf
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        conflicts_with_all = ["end_to_end", "prompt_gen", "split-layout"]
    )]
    pub(super) parts: Vec<Part>,
    /// Text that --parts tokenizes, a UTF-8 file [default: built-in text with prose, code, numbers and eight scripts]
    #[arg(long, value_name = "FILE", requires = "parts")]
    pub(super) text: Option<PathBuf>,
    /// Measure the limits of this machine, its read bandwidth and multiply-add rates at each -t, and save them. Later
    /// tests then print which share of the limits they reach
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
    pub(super) split: SplitFlags,
    #[command(flatten)]
    pub(super) drafts: Refused,
}

/// Returns the help text for a list of values of the option `name`.
///
/// # Panics
/// If there is no such option.
fn of_table(name: &str) -> String {
    OPTIONS.iter().find(|option| option.name == name).map(help_with_default).expect("an option of the table")
}

fn pair(text: &str) -> Result<(u32, u32), String> {
    let number = |text: &str| u32::from_str(text.trim()).ok();
    let numbers = text.split_once(',').and_then(|(prompt, gen_)| Some((number(prompt)?, number(gen_)?)));
    numbers.ok_or_else(|| format!("{text:?} is not a pair: write it as 512,128"))
}
