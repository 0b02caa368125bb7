//! `anneal bench`

mod curve;
mod layouts;
mod lists;
mod parts;
mod quants;
mod roof;
mod varied;

use std::io::{self, Write};
use std::path::{Path as FilePath, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Instant;

use anyhow::{Context as _, Result};
use engine_core::live::Live;
use engine_core::settings::{BATCH, POLL, Requested, Settings, THREADS};
use engine_core::split::Layouts;
use engine_core::tuning;
use gguf::GgufFile;
use llama::options::{FlashAttention, KvType, LoadMode};
use llama::start;
use tune::bench::parts::Part;
use tune::bench::work::Work;
use tune::bench::{Case, Path, Record, Repeat, end_to_end, kernel};
use tune::tuner::Objective;

use self::lists::{Numbers, flat, numbers};
use self::varied::Varied;
use super::flags::{DeviceFlags, LoadFlags, PlacementFlags, SplitFlags, VariantFlags};
use super::hub::HubFlags;
use super::table::{self, Format, Table};
use crate::interrupt;

/// What can be given for the tokens of a test.
const TOKENS: &str = "0 or more tokens, as a list: 0,128,512";

/// Measure prefill and decode speed by llama-bench's method
///
/// Lists are separated by commas, and ranges of numbers written 1-8, 1-8+2 or 1-8*2; every combination is measured.
/// Results go to stdout, one test after the other, with llama-bench's field names.
#[derive(clap::Args, Debug)]
#[command(after_help = super::LLAMA_FLAGS_HELP)]
pub struct Args {
    /// GGUF models
    #[arg(short, long, value_name = "LIST", required_unless_present_any = ["roofline", "hf"])]
    model: Vec<PathBuf>,
    #[command(flatten)]
    hub: HubFlags,
    /// Prompt lengths to evaluate; 0 is none
    #[arg(short = 'p', long, value_name = "LIST", value_delimiter = ',', default_value = "512", value_parser = numbers(TOKENS))]
    n_prompt: Vec<Numbers>,
    /// Numbers of tokens to generate; 0 is none
    #[arg(short = 'n', long, value_name = "LIST", value_delimiter = ',', default_value = "128", value_parser = numbers(TOKENS))]
    n_gen: Vec<Numbers>,
    /// A prompt and a generation in one test, as PROMPT,GEN; may be repeated
    #[arg(long, visible_alias = "pg", value_name = "P,G", value_parser = pair)]
    prompt_gen: Vec<(u32, u32)>,
    /// Tokens in the context before the test; not with --end-to-end
    #[arg(short = 'd', long, value_name = "LIST", value_delimiter = ',', default_value = "0", value_parser = numbers(TOKENS))]
    n_depth: Vec<Numbers>,
    /// Tokens evaluated in one call [default: 2048]
    #[arg(short = 'b', long, value_name = "LIST", value_delimiter = ',', value_parser = numbers(BATCH))]
    batch_size: Vec<Numbers>,
    /// Tokens evaluated in one graph [default: 512]
    #[arg(long, visible_alias = "ub", value_name = "LIST", value_delimiter = ',', value_parser = numbers(BATCH))]
    ubatch_size: Vec<Numbers>,
    /// Types of the K cache [default: f16]
    #[arg(long, visible_alias = "ctk", value_name = "LIST", value_delimiter = ',')]
    cache_type_k: Vec<KvType>,
    /// Types of the V cache [default: f16]
    #[arg(long, visible_alias = "ctv", value_name = "LIST", value_delimiter = ',')]
    cache_type_v: Vec<KvType>,
    /// Flash attention: auto, on, off [default: auto]
    #[arg(long, visible_alias = "fa", value_name = "LIST", value_delimiter = ',', value_parser = lists::flash_attention)]
    flash_attn: Vec<FlashAttention>,
    /// Threads, for both phases [default: what run takes, for each phase its own]. Of several, a curve follows the table
    #[arg(short = 't', long, value_name = "LIST", value_delimiter = ',', value_parser = numbers(THREADS))]
    threads: Vec<Numbers>,
    /// Threads of prefill where they are not to be -t's
    #[arg(long, visible_alias = "tb", value_name = "LIST", value_delimiter = ',', value_parser = numbers(THREADS))]
    threads_batch: Vec<Numbers>,
    /// How eagerly threads wait for work, 0 (sleep) to 100 (spin) [default: 50]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = numbers(POLL))]
    poll: Vec<Numbers>,
    /// How to load: auto, none, mmap, mlock, mmap_mlock or direct_io [default: auto]
    #[arg(long, visible_alias = "lm", value_name = "LIST", value_delimiter = ',', value_parser = lists::load_mode)]
    load_mode: Vec<LoadMode>,
    /// Whether weights are rearranged for the CPU's kernels: on, off [default: on]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = lists::on_off, conflicts_with = "no-repack")]
    repack: Vec<bool>,
    /// Start from what `anneal tune` found for this purpose (chat, rag, batch, latency or P:G) rather than from the
    /// defaults; one model
    #[arg(long, value_name = "PURPOSE", conflicts_with_all = ["roofline", "compare_layouts", "parts", "quants"])]
    tuned: Option<Objective>,
    /// The tuning record of --tuned [default: $ANNEAL_TUNING, else tuning.json in the state folder]
    #[arg(long, value_name = "FILE", requires = "tuned")]
    tuning: Option<PathBuf>,
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
    /// Show times per output token in the table, and the time that loading takes; --end-to-end shows them in any case
    #[arg(long)]
    latency: bool,
    /// Run each test with repacked weights, with the weights as in the file and with the split layout, in turns -r
    /// times, and say how many times as fast the split layout is
    #[arg(long, requires = "end_to_end", conflicts_with = "split-layout")]
    compare_layouts: bool,
    /// Time these parts of the work, each by itself, instead of llama-bench's tests: prefill and decode (of the sizes
    /// -p, -n and -d), tokenize, detokenize, sample, greedy, load, vocab, gguf
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        conflicts_with_all = ["end_to_end", "prompt_gen", "split-layout"]
    )]
    parts: Vec<Part>,
    /// Text that --parts tokenizes, a file in UTF-8 [default: one of prose, code, numbers and eight scripts]
    #[arg(long, value_name = "FILE", requires = "parts")]
    text: Option<PathBuf>,
    /// Measure what this machine can do at most, read bandwidth and multiply-adds at each of -t, and keep it: tests then
    /// tell which share of that they reach
    #[arg(long, conflicts_with_all = ["model", "hf", "end_to_end", "parts", "prompt_gen"])]
    roofline: bool,
    /// Do not keep what --roofline measures
    #[arg(long, requires = "roofline", conflicts_with = "model")]
    no_save: bool,
    /// Output: md, json, jsonl, csv or sql
    #[arg(short, long, value_name = "FORMAT", default_value = "md")]
    output: Format,
    #[command(flatten)]
    quants: quants::Flags,
    #[command(flatten)]
    placing: PlacementFlags,
    #[command(flatten)]
    variant: VariantFlags,
    #[command(flatten)]
    load: LoadFlags,
    #[command(flatten)]
    offload: DeviceFlags,
    #[command(flatten)]
    split: SplitFlags,
    #[command(flatten)]
    drafts: super::speculative::Refused,
}

pub fn run(args: &Args) -> Result<ExitCode> {
    args.drafts.refuse()?;
    let live = super::read_live();
    if args.roofline {
        interrupt::stop_after(table::interrupt);
        return roof::run(args, &live);
    }
    let mut models = lists::models(&args.model);
    models.extend(args.hub.any(None)?);
    let tuned = tuned(args, &models, &live)?;
    let settings = lists::settings(args, tuned.as_ref(), &live)?;
    settings.iter().for_each(super::warn_of);
    let cases = cases(args)?;
    start(args.load.verbose);
    if args.quants.is_asked() {
        return quants::run(args, &models, &settings, &cases, &live);
    }
    interrupt::stop_after(table::interrupt);
    // Before the first of them is measured for minutes.
    for model in &models {
        GgufFile::open(model).map_err(llama::error::Error::from)?;
    }
    if !args.parts.is_empty() {
        return parts::run(args, &models, &settings, &cases, &live);
    }
    if args.compare_layouts {
        let [path] = models.as_slice() else {
            return Err(llama::error::Error::Usage(
                "--compare-layouts takes one model: give -m once".to_string(),
            )
            .into());
        };
        let layouts = Layouts::open(path, &settings[0], &live)?;
        return layouts::run(args, &layouts, &settings, &cases, &live);
    }
    let roof = roof::Roof::find(&live);
    let varied = Varied::of(&models, &settings);
    let mut bench = Bench {
        args,
        cases: &cases,
        live: &live,
        commit: commit(&live),
        roof,
        curves: Default::default(),
        varied,
    };
    let mut table = Table::new(args.output, engine_core::terminal::stdout());
    table.expect(models.len() * settings.len() * cases.len());
    table.begin().context("cannot write the results to stdout")?;
    // What was measured before a test failed is a whole table all the same.
    let measured = models.iter().try_for_each(|path| bench.model(path, &settings, &mut table));
    let mut end = || -> io::Result<()> {
        table.end()?;
        match args.output {
            Format::Markdown => write!(engine_core::terminal::stdout(), "{}", bench.curves.draw()),
            _ => Ok(()),
        }
    };
    let ended = end().context("cannot write the results to stdout");
    measured.and(ended)?;
    Ok(ExitCode::SUCCESS)
}

/// What the tuning record says, where --tuned asks for it.
fn tuned(args: &Args, models: &[PathBuf], live: &Live) -> llama::error::Result<Option<Requested>> {
    let Some(objective) = &args.tuned else { return Ok(None) };
    let [model] = models else {
        return Err(llama::error::Error::Usage("--tuned takes one model: give -m once".to_string()));
    };
    let mut requested = Requested::default();
    args.variant.ask(&mut requested);
    let objective_name = objective.to_string();
    let given = args.tuning.as_deref();
    let found = tuning::look_up(given, model, &requested.variant, Some(&objective_name), live);
    match found.tuned {
        Some(tuned) => Ok(Some(tuned)),
        None => Err(llama::error::Error::Tune(match found.warnings.first() {
            Some(why) => format!("--tuned {objective}: {why}"),
            None => format!("--tuned {objective}: nothing is known of this model on this machine"),
        })),
    }
}

/// What the tests of a run share.
struct Bench<'a> {
    args: &'a Args,
    cases: &'a [Case],
    live: &'a Live,
    commit: String,
    roof: Option<roof::Roof>,
    curves: curve::Curves,
    varied: Varied,
}

impl Bench<'_> {
    /// Runs every test with the model at `path`, which is loaded again where settings want it loaded otherwise.
    fn model<W: io::Write>(
        &mut self,
        path: &FilePath,
        settings: &[Settings],
        table: &mut Table<W>,
    ) -> Result<()> {
        let work = self.roof.as_ref().and_then(|_| Work::of(path));
        for settings in settings.chunk_by(|a, b| a.model_options() == b.model_options()) {
            let begin = Instant::now();
            let layouts = Layouts::open(path, &settings[0], self.live)?;
            let load_ns = u64::try_from(begin.elapsed().as_nanos()).ok();
            super::warn_of_one_layout(&layouts);
            for settings in settings {
                // The state at a depth, kept as long as the settings are the same.
                let mut depth = None;
                for case in self.cases {
                    let mut record = self.measure(&layouts, case, settings, &mut depth)?;
                    record.load_ns = load_ns;
                    record.columns.latency = self.args.latency || self.args.end_to_end;
                    if let Some(roof) = &self.roof {
                        roof.hold(&mut record, layouts.model(), work.as_ref());
                    }
                    let extra = self.varied.cells(path, settings);
                    table.add_with(&record, &extra).context("cannot write the results to stdout")?;
                    self.curves.add(&record);
                }
            }
        }
        Ok(())
    }

    fn measure(
        &self,
        layouts: &Layouts,
        case: &Case,
        settings: &Settings,
        depth: &mut Option<(u32, Vec<u8>)>,
    ) -> llama::error::Result<Record> {
        let repeat = Repeat { samples: self.args.repetitions, warm_up: !self.args.no_warmup };
        let samples = match path(self.args) {
            Path::EndToEnd => end_to_end(layouts, case, settings, self.live, repeat)?,
            Path::Kernel => kernel(layouts, case, settings, self.live, repeat, depth)?,
        };
        let settings = settings.for_model(layouts.model());
        Ok(Record::new(path(self.args), *case, layouts.model(), &self.commit, &settings, samples))
    }
}

/// llama.cpp's version, from the build's record where there is one.
fn commit(live: &Live) -> String {
    match &live.build {
        Some((_, build)) => build.llama_version.clone(),
        None => llama::llama_version(),
    }
}

fn path(args: &Args) -> Path {
    if args.end_to_end { Path::EndToEnd } else { Path::Kernel }
}

/// Every test: at each depth prompts, generations, and pairs; end to end only pairs. At least one.
fn cases(args: &Args) -> llama::error::Result<Vec<Case>> {
    let mut cases = Vec::new();
    let (n_prompt, n_gen) = (flat(&args.n_prompt), flat(&args.n_gen));
    for n_depth in flat(&args.n_depth) {
        let case = |n_prompt, n_gen| Case { n_prompt, n_gen, n_depth };
        if args.end_to_end {
            if args.prompt_gen.is_empty() {
                cases.extend(n_prompt.iter().flat_map(|&p| n_gen.iter().map(move |&n| case(p, n))));
            }
        } else {
            cases.extend(n_prompt.iter().map(|&n_prompt| case(n_prompt, 0)));
            cases.extend(n_gen.iter().map(|&n_gen| case(0, n_gen)));
        }
        cases.extend(args.prompt_gen.iter().map(|&(n_prompt, n_gen)| case(n_prompt, n_gen)));
    }
    cases.retain(|case| case.n_prompt > 0 || case.n_gen > 0);
    if cases.is_empty() {
        let why = "there is nothing to measure: every test has 0 tokens; give -p, -n or -pg a number";
        return Err(llama::error::Error::Usage(why.to_string()));
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
