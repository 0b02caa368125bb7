//! Command `anneal run`.

use std::fs::File;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use base::exit::INTERRUPTED;
use engine_core::cache::PromptCacheReport;
use engine_core::generate::{Generation, Request, Stop, generate};
use engine_core::model;
use engine_core::session::Session;
use engine_core::settings::{Requested, Settings};
use llama::{cuda_graphs, start};
use sampling::Chain;
use serde_json::json;

use super::cache::{self, CacheFlags};
use super::device;
use super::flags::{ContextFlags, DeviceFlags, LoadFlags, ThreadFlags, TuningFlags, VariantFlags, whole};
use super::hub::HubFlags;
use super::outlet::Outlet;
use super::sampling::ChainFlags;
use super::speculative::{self, SpeculativeFlags};
use crate::interrupt;

/// Generate text from a prompt
///
/// The text is printed to stdout as it is generated, and the speeds are printed to stderr. Ctrl-C stops the
/// generation and still prints the speeds; the exit code is then 130.
#[derive(clap::Args, Debug)]
#[command(after_help = super::LLAMA_FLAGS_HELP)]
pub struct Args {
    /// GGUF model
    #[arg(short, long, value_name = "FILE", required_unless_present = "hf")]
    model: Option<PathBuf>,
    #[command(flatten)]
    hub: HubFlags,
    /// Text to continue
    #[arg(short, long, value_name = "TEXT", conflicts_with = "file", allow_hyphen_values = true)]
    prompt: Option<String>,
    /// File with the text to continue; - for stdin
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Maximum number of tokens to generate; -1 for no limit other than the context
    #[arg(short = 'n', long, value_name = "N", default_value = "128", value_parser = predict)]
    predict: u32,
    /// Continue generating after the model's end-of-text token
    #[arg(long, visible_alias = "ignore-eog")]
    ignore_eos: bool,
    /// Print one JSON object at the end instead of the text
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    sampling: ChainFlags,
    #[command(flatten)]
    context: ContextFlags,
    #[command(flatten)]
    threads: ThreadFlags,
    #[command(flatten)]
    variant: VariantFlags,
    #[command(flatten)]
    load: LoadFlags,
    #[command(flatten)]
    offload: DeviceFlags,
    #[command(flatten)]
    cache: CacheFlags,
    #[command(flatten)]
    speculative: SpeculativeFlags,
    #[command(flatten)]
    tuning: TuningFlags,
}

pub fn run(args: &Args) -> Result<ExitCode> {
    let mut requested = Requested::default();
    args.sampling.basic.ask(&mut requested);
    args.context.ask(&mut requested);
    args.threads.ask(&mut requested);
    args.load.ask(&mut requested);
    args.offload.ask(&mut requested);
    args.variant.ask(&mut requested);
    let runtime_host = super::placed_runtime_host(&requested)?;
    let model = args.hub.one(args.model.as_deref())?;
    let tuned = args.tuning.look_up(&model, &requested.variant, &runtime_host);
    let settings = Settings::resolve_tuned(&requested, tuned.as_ref(), &runtime_host)?;
    super::warn_of(&settings);
    super::warn_of_context(&model, &settings);
    let sampling = args.sampling.options(&settings)?;
    let speculation = args.speculative.options()?;
    device::check(&settings, &speculation, args.cache.prompt_cache.is_some())?;
    let prompt = prompt(args.prompt.as_deref(), args.file.as_deref())?;

    start(args.load.verbose);
    interrupt::stop_in_order();
    let loading = Instant::now();
    let cache = args.cache.want(&model)?;
    let model = model::open(&model, &settings, &runtime_host)?;
    let mut session = Session::open(&model, &settings, &runtime_host, true)?;
    session.speculate(&speculation, &settings, &runtime_host)?;
    session.follow_load(&settings);
    session.sample_on_device(settings.device_sampling.value);
    let mut chain = Chain::new(&sampling, &model)?;
    let cache = cache.and_then(|wanted| cache::open(wanted, &model, &session, &settings, &runtime_host));
    let load = loading.elapsed();

    let request = Request {
        prompt: &prompt,
        n_predict: args.predict,
        ignore_end: args.ignore_eos,
        shown: &[],
        thoughts: None,
    };
    let mut text = String::new();
    let mut outlet = Outlet::stdout();
    let mut on_text = |piece: &str| {
        if args.json {
            text.push_str(piece);
            return ControlFlow::Continue(());
        }
        outlet.send(piece.to_string())
    };
    let (generation, report) = match &cache {
        Some(cache) => engine_core::cache::generate(&mut session, &mut chain, &request, cache, &mut on_text)?,
        None => (generate(&mut session, &mut chain, &request, &mut on_text)?, PromptCacheReport::default()),
    };
    match outlet.finish() {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(ExitCode::SUCCESS),
        written => written.context("cannot write the text to stdout")?,
    }
    let mut stdout = engine_core::terminal::stdout();
    if args.json {
        let mut result = json!({
            "text": text,
            "tokens": generation.tokens,
            "prompt_tokens": generation.prompt_tokens,
            "cached_tokens": generation.cached_tokens,
            "context": session.n_ctx(),
            "stop": generation.stop,
            "seed": chain.seed(),
            "device_sampling": device::to_json(chain.device_report()),
            "graphs": generation.graphs,
            "timings": timings(&generation, load),
        });
        if let Some(report) = &generation.speculation {
            result["speculative"] = report.to_json();
        }
        if let Some(graphs) = cuda_graphs() {
            result["cuda_graphs"] = json!(graphs);
        }
        if cache.is_some() {
            result["prompt_cache"] = cache::to_json(&report);
        }
        writeln!(stdout, "{result}").context("cannot write the result to stdout")?;
    } else {
        writeln!(stdout).context("cannot write to stdout")?;
    }
    say_speed(&generation, load, session.threads());
    cache::say(&report, &generation);
    speculative::say(&generation);
    device::say(&settings, chain.device_report());
    Ok(match generation.stop {
        Stop::Interrupted => ExitCode::from(INTERRUPTED),
        _ => ExitCode::SUCCESS,
    })
}

/// Parses a number of tokens. As in llama.cpp, -1 means that there is no limit.
pub(super) fn predict(text: &str) -> Result<u32, String> {
    match text {
        "-1" => Ok(u32::MAX),
        _ => whole("a number of tokens, or -1 for no limit other than the context")(text),
    }
}

/// Returns the text of `-p`, or the contents of the file or stdin that `-f` names.
pub(super) fn prompt(text: Option<&str>, file: Option<&Path>) -> Result<String> {
    const LARGEST: u64 = 256 << 20;
    let (bytes, name) = match (text, file) {
        (Some(text), _) => return Ok(text.to_string()),
        (None, Some(path)) if path == Path::new("-") => {
            let read = base::to_end(io::stdin().lock(), LARGEST);
            (read.context("cannot read the prompt from stdin")?, "stdin".to_string())
        }
        (None, Some(path)) => {
            let read = File::open(path).and_then(|file| base::to_end(file, LARGEST));
            let hint = "check the path; `-f -` reads stdin";
            let bytes = read.map_err(|error| super::unread("the prompt", path, error, hint))?;
            (bytes, path.display().to_string())
        }
        (None, None) => return Ok(String::new()),
    };
    match String::from_utf8(bytes) {
        Ok(text) => Ok(text),
        Err(error) => {
            let at = error.utf8_error().valid_up_to();
            bail!(
                "the prompt in {name} is not valid UTF-8: byte {at} is invalid\nhint: convert it, for example with \
                iconv -t UTF-8"
            )
        }
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn timings(generation: &Generation, load: Duration) -> serde_json::Value {
    json!({
        "load_ms": milliseconds(load),
        "time_to_first_token_ms": generation.time_to_first_token.map(milliseconds),
        "prefill_ms": milliseconds(generation.prefill),
        "prefill_tokens_per_second": generation.prefill_tokens_per_second(),
        "decode_ms": milliseconds(generation.decode),
        "decode_tokens_per_second": generation.decode_tokens_per_second(),
    })
}

/// Prints two lines with the speeds to stderr. Errors are ignored.
fn say_speed(generation: &Generation, load: Duration, (decode, prefill): (u32, u32)) {
    let speed = |speed: Option<f64>| speed.map_or("-".to_string(), |speed| format!("{speed:.2} t/s"));
    let first = generation
        .time_to_first_token
        .map_or("-".to_string(), |time| format!("{:.0} ms", milliseconds(time)));
    let why = match generation.stop {
        Stop::End => "end of text",
        Stop::Length => "length",
        Stop::ContextFull => "context full: raise -c",
        Stop::Interrupted => "interrupted",
        Stop::OutputClosed => "output closed",
    };
    let _ = write!(
        io::stderr().lock(),
        "load {:.0} ms, first token {first}\n\
         prefill {} tokens {} ({prefill} threads), decode {} tokens {} ({decode} threads), stopped: {why}\n",
        milliseconds(load),
        generation.prompt_tokens - generation.cached_tokens,
        speed(generation.prefill_tokens_per_second()),
        generation.tokens.len(),
        speed(generation.decode_tokens_per_second()),
    );
}
