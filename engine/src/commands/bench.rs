//! `anneal bench`

mod layouts;
mod parts;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;

use anyhow::{Context as _, Result};
use engine::bench::parts::Part;
use engine::bench::{Case, Path, Record, Repeat, end_to_end, kernel};
use engine::ffi::start;
use engine::live::Live;
use engine::options::{FlashAttention, KvType, SplitLayout};
use engine::settings::{Requested, Settings};
use engine::split::Layouts;

use super::flags::{BATCH, LoadFlags, PlacingFlags, SplitFlags, THREADS, whole};
use super::table::{Format, Table};
use crate::interrupt;

/// What can be given for the tokens of a test.
const TOKENS: &str = "0 or more tokens, as a list: 0,128,512";

/// Measure prefill and decode speed by llama-bench's method
///
/// Lists are separated by commas; every combination is measured. Results go to stdout, one test after the
/// other, with llama-bench's field names.
#[derive(clap::Args, Debug)]
#[command(after_help = super::LLAMA_FLAGS_HELP)]
pub struct Args {
    /// GGUF model
    #[arg(short, long, value_name = "FILE")]
    model: PathBuf,
    /// Prompt lengths to evaluate; 0 is none
    #[arg(short = 'p', long, value_name = "LIST", value_delimiter = ',', default_value = "512", value_parser = whole(TOKENS))]
    n_prompt: Vec<u32>,
    /// Numbers of tokens to generate; 0 is none
    #[arg(short = 'n', long, value_name = "LIST", value_delimiter = ',', default_value = "128", value_parser = whole(TOKENS))]
    n_gen: Vec<u32>,
    /// A prompt and a generation in one test, as PROMPT,GEN; may be repeated
    #[arg(long, visible_alias = "pg", value_name = "P,G", value_parser = pair)]
    prompt_gen: Vec<(u32, u32)>,
    /// Tokens in the context before the test; not with --end-to-end
    #[arg(short = 'd', long, value_name = "LIST", value_delimiter = ',', default_value = "0", value_parser = whole(TOKENS))]
    n_depth: Vec<u32>,
    /// Tokens evaluated in one call
    #[arg(short = 'b', long, value_name = "LIST", value_delimiter = ',', default_value = "2048", value_parser = whole(BATCH))]
    batch_size: Vec<u32>,
    /// Tokens evaluated in one graph
    #[arg(long, visible_alias = "ub", value_name = "LIST", value_delimiter = ',', default_value = "512", value_parser = whole(BATCH))]
    ubatch_size: Vec<u32>,
    /// Types of the K cache
    #[arg(long, visible_alias = "ctk", value_name = "LIST", value_delimiter = ',', default_value = "f16")]
    cache_type_k: Vec<KvType>,
    /// Types of the V cache
    #[arg(long, visible_alias = "ctv", value_name = "LIST", value_delimiter = ',', default_value = "f16")]
    cache_type_v: Vec<KvType>,
    /// Flash attention: auto, on, off
    #[arg(long, visible_alias = "fa", value_name = "LIST", value_delimiter = ',', default_value = "auto")]
    flash_attn: Vec<FlashAttention>,
    /// Threads, for both phases [default: what run takes, for each phase its own]
    #[arg(short = 't', long, value_name = "LIST", value_delimiter = ',', value_parser = whole(THREADS))]
    threads: Vec<u32>,
    /// Threads of prefill where they are not to be -t's
    #[arg(long, visible_alias = "tb", value_name = "N", value_parser = whole(THREADS))]
    threads_batch: Option<u32>,
    /// Samples of each test
    #[arg(short = 'r', long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    repetitions: u32,
    /// Leave out the run before the samples
    #[arg(long)]
    no_warmup: bool,
    /// Measure the whole path, from text through tokenizer, prefill, sampler and decode to text: -pg as it is,
    /// else every -p with every -n
    #[arg(long)]
    end_to_end: bool,
    /// Run each test with repacked weights, with the weights as in the file and with the split layout, in turns -r
    /// times, and say how many times as fast the split layout is
    #[arg(long, requires = "end_to_end", conflicts_with = "split_layout")]
    compare_layouts: bool,
    /// Time these parts of the work, each by itself, instead of llama-bench's tests: prefill and decode (of the sizes
    /// -p, -n and -d), tokenize, detokenize, sample, greedy, load, vocab, gguf
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        conflicts_with_all = ["end_to_end", "prompt_gen", "split_layout"]
    )]
    parts: Vec<Part>,
    /// Text that --parts tokenizes, a file in UTF-8 [default: one of prose, code, numbers and eight scripts]
    #[arg(long, value_name = "FILE", requires = "parts")]
    text: Option<PathBuf>,
    /// Output: md, json, jsonl or csv
    #[arg(short, long, value_name = "FORMAT", default_value = "md")]
    output: Format,
    #[command(flatten)]
    placing: PlacingFlags,
    #[command(flatten)]
    load: LoadFlags,
    #[command(flatten)]
    split: SplitFlags,
}

pub fn run(args: &Args) -> Result<ExitCode> {
    let live = super::read_live();
    let settings = settings(args, &live)?;
    settings.iter().for_each(super::warn_of);
    let cases = cases(args)?;
    start(args.load.verbose);
    interrupt::stop_at_once();
    if !args.parts.is_empty() {
        return parts::run(args, &settings, &cases, &live);
    }
    let layouts = Layouts::open(&args.model, &settings[0], &live)?;
    if args.compare_layouts {
        return layouts::run(args, &layouts, &settings, &cases, &live);
    }
    super::warn_of_one_layout(&layouts);
    let commit = commit(&live);
    let mut table = Table::new(args.output, io::stdout().lock());
    table.begin().context("cannot write the results to stdout")?;
    // The state at a depth, kept as long as the settings are the same.
    for settings in &settings {
        let mut depth = None;
        for case in &cases {
            let record = measure(args, &layouts, case, settings, &live, &commit, &mut depth)?;
            table.add(&record).context("cannot write the results to stdout")?;
        }
    }
    table.end().context("cannot write the results to stdout")?;
    Ok(ExitCode::SUCCESS)
}

/// llama.cpp's version, from the build's record where there is one.
fn commit(live: &Live) -> String {
    match &live.build {
        Some((_, build)) => build.llama_version.clone(),
        None => engine::ffi::llama_version(),
    }
}

fn measure(
    args: &Args,
    layouts: &Layouts,
    case: &Case,
    settings: &Settings,
    live: &Live,
    commit: &str,
    depth: &mut Option<(u32, Vec<u8>)>,
) -> engine::Result<Record> {
    let repeat = Repeat { samples: args.repetitions, warm_up: !args.no_warmup };
    let samples = match path(args) {
        Path::EndToEnd => end_to_end(layouts, case, settings, live, repeat)?,
        Path::Kernel => kernel(layouts, case, settings, live, repeat, depth)?,
    };
    Ok(Record::new(path(args), *case, layouts.model(), commit, settings, samples))
}

fn path(args: &Args) -> Path {
    if args.end_to_end { Path::EndToEnd } else { Path::Kernel }
}

/// Every combination of the settings, in llama-bench's order.
fn settings(args: &Args, live: &Live) -> engine::Result<Vec<Settings>> {
    let mut requested = Requested { prefill_threads: args.threads_batch, ..Requested::default() };
    args.placing.ask(&mut requested);
    args.load.ask(&mut requested);
    args.split.ask(&mut requested);
    if args.compare_layouts {
        requested.split_layout = Some(SplitLayout::On);
    }
    let threads: Vec<Option<u32>> = match args.threads.as_slice() {
        [] => vec![None],
        list => list.iter().copied().map(Some).collect(),
    };
    let mut all = Vec::new();
    for &n_batch in &args.batch_size {
        for &n_ubatch in &args.ubatch_size {
            for &type_k in &args.cache_type_k {
                for &type_v in &args.cache_type_v {
                    for &flash_attention in &args.flash_attn {
                        for &decode_threads in &threads {
                            let requested = Requested {
                                n_batch: Some(n_batch),
                                n_ubatch: Some(n_ubatch),
                                type_k: Some(type_k),
                                type_v: Some(type_v),
                                flash_attention: Some(flash_attention),
                                decode_threads,
                                ..requested.clone()
                            };
                            all.push(Settings::resolve(&requested, live)?);
                        }
                    }
                }
            }
        }
    }
    Ok(all)
}

/// Every test: at each depth prompts, generations, and pairs; end to end only pairs. At least one.
fn cases(args: &Args) -> engine::Result<Vec<Case>> {
    let mut cases = Vec::new();
    for &n_depth in &args.n_depth {
        let case = |n_prompt, n_gen| Case { n_prompt, n_gen, n_depth };
        if args.end_to_end {
            if args.prompt_gen.is_empty() {
                cases.extend(args.n_prompt.iter().flat_map(|&p| args.n_gen.iter().map(move |&n| case(p, n))));
            }
        } else {
            cases.extend(args.n_prompt.iter().map(|&n_prompt| case(n_prompt, 0)));
            cases.extend(args.n_gen.iter().map(|&n_gen| case(0, n_gen)));
        }
        cases.extend(args.prompt_gen.iter().map(|&(n_prompt, n_gen)| case(n_prompt, n_gen)));
    }
    cases.retain(|case| case.n_prompt > 0 || case.n_gen > 0);
    if cases.is_empty() {
        let why = "there is nothing to measure: every test has 0 tokens; give -p, -n or -pg a number";
        return Err(engine::Error::Usage(why.to_string()));
    }
    // Before the model is loaded, and before the first test runs for minutes.
    cases.iter().try_for_each(|case| case.n_ctx(path(args)).map(drop))?;
    Ok(cases)
}

fn pair(text: &str) -> Result<(u32, u32), String> {
    let number = |text: &str| u32::from_str(text.trim()).ok();
    let numbers = text.split_once(',').and_then(|(prompt, gen_)| Some((number(prompt)?, number(gen_)?)));
    numbers.ok_or_else(|| format!("{text:?} is no pair: write it as 512,128"))
}
