//! Command `anneal eval`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use base::exit::INTERRUPTED;
use build_info::evaluation::{Divergence, Estimate};
use build_info::words::printable;
use engine_core::model;
use engine_core::runtime_host::RuntimeHost;
use engine_core::settings::{Requested, Settings};
use llama::{Model, start};
use serde::Serialize;
use tools::eval::{self, ChunkedText, Evaluation, Reference, built_in_text};

use super::bar::Bar;
use super::flags::{DeviceFlags, LoadFlags, ThreadFlags, whole};
use crate::interrupt;

/// Valid chunk sizes, for error messages.
pub const CHUNK: &str = "16 or more tokens";

/// Valid numbers of chunks, for error messages.
pub const CHUNKS: &str = "1 or more chunks, or omit the flag for all chunks";

/// Measure perplexity, and divergence from another model
///
/// Uses llama-perplexity's method: the text is split into chunks, and the second half of each chunk is scored.
/// --against measures the effect of quantisation: the KL divergence from the original model, and how often both
/// models prefer the same token. Ctrl-C stops the evaluation and prints the result so far.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// GGUF model
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// Model to compare with, usually the unquantised original; it must have the same vocabulary
    #[arg(long, value_name = "REF")]
    against: Option<PathBuf>,
    /// Text file in UTF-8 [default: 14 KB of built-in text: prose, code, tables and eight writing systems]
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Number of tokens per chunk
    #[arg(short = 'c', long = "ctx", value_name = "N", default_value_t = eval::DEFAULT_CHUNK, value_parser = whole(CHUNK))]
    chunk: u32,
    /// Maximum number of chunks [default: all]
    #[arg(long, value_name = "N", value_parser = whole(CHUNKS))]
    chunks: Option<u32>,
    /// Load the reference and the model one after the other; automatic if they do not both fit into memory. The
    /// reference's probabilities are stored in a temporary file in $TMPDIR
    #[arg(long, requires = "against")]
    one_at_a_time: bool,
    /// Output format: md or json
    #[arg(short, long, value_name = "FORMAT", default_value = "md")]
    output: EvalFormat,
    /// Do not print progress
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    threads: ThreadFlags,
    #[command(flatten)]
    load: LoadFlags,
    #[command(flatten)]
    offload: DeviceFlags,
}

/// Format of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EvalFormat {
    Markdown,
    Json,
}

impl FromStr for EvalFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "md" => Ok(EvalFormat::Markdown),
            "json" => Ok(EvalFormat::Json),
            _ => Err(format!("unknown format {text:?}: use md or json")),
        }
    }
}

/// Result as JSON.
#[derive(Serialize)]
struct EvalJson<'a> {
    model: &'a Path,
    #[serde(skip_serializing_if = "Option::is_none")]
    reference: Option<&'a Path>,
    /// Path of the text, or `built-in`.
    text: String,
    #[serde(flatten)]
    evaluation: &'a Evaluation,
}

pub fn run(args: &Args) -> Result<ExitCode> {
    let mut requested = Requested::default();
    args.threads.ask(&mut requested);
    args.load.ask(&mut requested);
    args.offload.ask(&mut requested);
    let runtime_host = super::placed_runtime_host(&requested)?;
    let settings = Settings::resolve(&requested, &runtime_host)?;
    super::warn_of(&settings);
    check(args.chunk, args.chunks)?;
    let text = match &args.file {
        Some(path) => super::read_text(path)?,
        None => built_in_text(),
    };

    start(args.load.verbose);
    interrupt::stop_in_order();
    let work = EvalRun { args, text: &text, settings: &settings, runtime_host: &runtime_host };
    let found = match &args.against {
        None => work.alone()?,
        Some(reference) => work.against(reference)?,
    };
    print(args, &found).context("cannot write the result to stdout")?;
    if found.interrupted {
        let (done, all) = (found.chunks, found.chunks_planned);
        let _ = writeln!(std::io::stderr(), "interrupted: {done} of {all} chunks were evaluated");
        return Ok(ExitCode::from(INTERRUPTED));
    }
    // The reference is checked first, because a comparison with a broken reference says nothing about the model.
    let reference = found.against.as_ref().map(|divergence| divergence.reference_perplexity);
    for (path, perplexity) in [(args.against.as_ref(), reference), (Some(&args.model), found.perplexity)] {
        if let (Some(path), Some(perplexity)) = (path, perplexity)
            && !perplexity.value.is_finite()
        {
            anyhow::bail!(
                "cannot evaluate {}: its probabilities are not numbers, so the file is damaged or this build is \
                broken\nhint: check the model with another build",
                path.display()
            );
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Checks the chunk size and the number of chunks.
///
/// # Errors
/// If a value is out of range.
pub fn check(chunk: u32, chunks: Option<u32>) -> llama::error::Result<()> {
    let usage = |why: String| Err(llama::error::Error::Usage(why));
    let (least, most) = (eval::LEAST_CHUNK, engine_core::settings::MAX_CTX);
    if !(least..=most).contains(&chunk) {
        return usage(format!("--ctx {chunk}: use {least} to {most} tokens"));
    }
    if chunks == Some(0) {
        return usage("--chunks 0: use at least 1".to_string());
    }
    Ok(())
}

struct EvalRun<'a> {
    args: &'a Args,
    text: &'a str,
    settings: &'a Settings,
    runtime_host: &'a RuntimeHost,
}

impl EvalRun<'_> {
    fn open(&self, path: &Path) -> Result<(Arc<Model>, ChunkedText)> {
        let model = model::open(path, self.settings, self.runtime_host)?;
        let text = ChunkedText::new(&model, self.text, self.args.chunk, self.args.chunks)?;
        let trained = model.n_ctx_train();
        if self.args.chunk > trained {
            let _ = writeln!(
                std::io::stderr(),
                "warning: chunks of {} tokens are longer than the {trained}-token context that {} was trained \
                with",
                self.args.chunk,
                printable(&path.to_string_lossy())
            );
        }
        Ok((model, text))
    }

    fn bar(&self, what: &'static str) -> Bar {
        Bar::new(what, "chunks", self.args.quiet || self.args.load.verbose)
    }

    fn alone(&self) -> Result<Evaluation> {
        let (model, text) = self.open(&self.args.model)?;
        let mut bar = self.bar("evaluate");
        let found = eval::perplexity(&model, &text, self.settings, self.runtime_host, &mut |done, all| {
            bar.show(done, all)
        });
        bar.end();
        Ok(found?)
    }

    fn against(&self, reference: &Path) -> Result<Evaluation> {
        if self.args.one_at_a_time || !eval::fit_together(&self.args.model, reference, self.runtime_host)? {
            return self.one_at_a_time(reference);
        }
        let (model, text) = self.open(&self.args.model)?;
        let other = model::open(reference, self.settings, self.runtime_host)?;
        eval::same_vocabulary(&model, &other)?;
        let mut bar = self.bar("evaluate");
        let mut show = |done, all| bar.show(done, all);
        let found = eval::against(&model, &other, &text, self.settings, self.runtime_host, &mut show);
        bar.end();
        Ok(found?)
    }

    fn one_at_a_time(&self, reference: &Path) -> Result<Evaluation> {
        let (other, text) = self.open(reference)?;
        // The vocabularies are compared before the long evaluation. This check loads only the model's vocabulary.
        let vocabulary = llama::ModelOptions { vocab_only: true, ..self.settings.model_options() };
        model::check_file(&self.args.model, self.settings)?;
        eval::same_vocabulary(&*Model::load(&self.args.model, &vocabulary)?, &other)?;
        let mut bar = self.bar("evaluate the reference");
        let mut show = |done, all| bar.show(done, all);
        let saved = Reference::save(&other, &text, self.settings, self.runtime_host, &mut show);
        bar.end();
        drop(other);
        let mut saved = saved?;
        if let Some(nothing) = saved.cut_short() {
            llama::notice::warn("interrupted while evaluating the reference; the model was not evaluated");
            return Ok(nothing);
        }
        let model = model::open(&self.args.model, self.settings, self.runtime_host)?;
        let mut bar = self.bar("evaluate");
        let found =
            saved.against(&model, self.settings, self.runtime_host, &mut |done, all| bar.show(done, all));
        bar.end();
        Ok(found?)
    }
}

fn print(args: &Args, found: &Evaluation) -> std::io::Result<()> {
    let mut out = engine_core::terminal::stdout();
    let text = args.file.as_ref().map_or("built-in".to_string(), |path| path.display().to_string());
    if args.output == EvalFormat::Json {
        let report =
            EvalJson { model: &args.model, reference: args.against.as_deref(), text, evaluation: found };
        serde_json::to_writer_pretty(&mut out, &report)?;
        return writeln!(out);
    }
    let text = printable(&text);
    let name = |path: &Path| printable(&path.file_name().unwrap_or_default().to_string_lossy()).into_owned();
    let mut rows = vec![
        ("model", name(&args.model)),
        ("text", format!("{text}, {} chunks of {} tokens", found.chunks, found.chunk_tokens)),
        ("positions scored", found.positions.to_string()),
    ];
    let shown = found.perplexity.map_or("none yet".to_string(), perplexity);
    rows.push(("perplexity", shown));
    if let (Some(reference), Some(divergence)) = (&args.against, &found.against) {
        rows.insert(1, ("reference", name(reference)));
        rows.extend(lines(divergence));
    }
    let widths = rows.iter().fold((6, 5), |(left, right), (name, value)| {
        (left.max(name.chars().count()), right.max(value.chars().count()))
    });
    let mut line =
        |name: &str, value: &str| writeln!(out, "| {name:<0$} | {value:>1$} |", widths.0, widths.1);
    line("figure", "value")?;
    line(&format!("{:-<1$}", "", widths.0), &format!("{:->1$}:", "", widths.1 - 1))?;
    rows.iter().try_for_each(|(name, value)| line(name, value))
}

/// Returns the rows of the comparison.
fn lines(found: &Divergence) -> [(&'static str, String); 9] {
    [
        ("perplexity of the reference", perplexity(found.reference_perplexity)),
        ("perplexity, model / reference", format!("{:.5}", found.perplexity_ratio)),
        ("KL divergence, mean (nats)", format!("{:.6}", found.mean_kld)),
        ("KL divergence, median", format!("{:.6}", found.median_kld)),
        ("KL divergence, 99 %", format!("{:.6}", found.p99_kld)),
        ("KL divergence, maximum", format!("{:.6}", found.max_kld)),
        ("same most likely token", format!("{:.3} %", found.top1.times(100.0))),
        ("mean Δp of the correct token", format!("{:.4} %", found.mean_dp.times(100.0))),
        ("RMS Δp of the correct token", format!("{:.4} %", found.rms_dp.times(100.0))),
    ]
}

/// Formats a perplexity with its significant digits. A model with random weights has a perplexity in the millions.
pub fn perplexity(found: Estimate) -> String {
    let digits = match found.value {
        value if value < 1e3 => 4,
        value if value < 1e6 => 1,
        _ => 0,
    };
    format!("{found:.digits$}")
}
