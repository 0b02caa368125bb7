//! Command `anneal quantize`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use base::exit::INTERRUPTED;
use build_info::Bytes;
use build_info::words::printable;
use engine_core::settings::{Requested, Settings, THREADS};
use gguf::GgmlType;
use gguf::partial::{PartialFile, refuse_foreign};
use llama::error::Error;
use llama::quantize::{QuantizeOptions, Type};
use llama::{exit_now, interrupted, start};
use tools::quantize::{PlannedTensor, QuantizePlan, idle_overrides, plan, quantize};

use super::bar::Bar;
use super::flags::whole;
use crate::interrupt;

/// Quantise a model
///
/// The output file appears only when it is complete, and ctrl-C leaves no partial file. Most errors are reported
/// before quantisation begins.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Model to read
    input: PathBuf,
    /// Model to write
    output: PathBuf,
    /// Quantisation type, named as in llama-quantize: Q4_K_M, Q8_0, F16, … (an invalid name prints the full list)
    #[arg(value_name = "TYPE")]
    kind: Type,
    /// Number of threads [default: one per core]
    #[arg(short = 't', long, value_name = "N", value_parser = whole(THREADS))]
    threads: Option<u32>,
    /// Accept a model that is already quantised; quantising it again loses more quality
    #[arg(long)]
    allow_requantize: bool,
    /// Importance matrix for this model, from `anneal imatrix` or llama-imatrix; improves low-bit types, and is
    /// required for IQ1, IQ2, IQ3_XXS and Q2_K_S
    #[arg(long, value_name = "FILE")]
    imatrix: Option<PathBuf>,
    /// Do not quantise the output matrix
    #[arg(long)]
    leave_output_tensor: bool,
    /// Use the same type for every matrix, instead of a mixture
    #[arg(long)]
    pure: bool,
    /// Type of the output matrix, named as in ggml: q6_K, q8_0, f16, …
    #[arg(long, value_name = "TYPE", value_parser = tensor_type)]
    output_tensor_type: Option<GgmlType>,
    /// Type of the token embeddings
    #[arg(long, value_name = "TYPE", value_parser = tensor_type)]
    token_embedding_type: Option<GgmlType>,
    /// Type of the tensors whose names match a regular expression, for example attn_v=q8_0 or
    /// 'blk\.[0-3]\.ffn_down=q6_K'; can be repeated, and the first match is used
    #[arg(long, value_name = "REGEX=TYPE", value_parser = tensor_override)]
    tensor_type: Vec<(String, GgmlType)>,
    /// Print the resulting type and size of each tensor, and the total size, without writing a model
    #[arg(long)]
    dry_run: bool,
    /// With --dry-run, print JSON
    #[arg(long, requires = "dry_run")]
    json: bool,
    /// Print llama.cpp's log to stderr
    #[arg(short, long)]
    verbose: bool,
    /// Do not print progress
    #[arg(short, long)]
    quiet: bool,
}

pub fn run(args: &Args) -> Result<ExitCode> {
    let runtime_host = super::read_runtime_host();
    if !args.dry_run {
        let place = PartialFile::beside(&args.output, Bytes(0));
        let place = place.and_then(|_| refuse_foreign(&args.output));
        place.map_err(|error| Error::Place(Box::new(error)))?;
    }
    let requested = Requested { prefill_threads: args.threads, ..Requested::default() };
    let threads = Settings::resolve(&requested, &runtime_host)?.prefill_threads.value;
    start(args.verbose);
    let options = QuantizeOptions {
        kind: args.kind,
        threads,
        allow_requantize: args.allow_requantize,
        leave_output: args.leave_output_tensor,
        pure: args.pure,
        output_type: args.output_tensor_type,
        embedding_type: args.token_embedding_type,
        tensor_types: args.tensor_type.clone(),
        imatrix: args.imatrix.as_deref().map(tools::imatrix::read).transpose()?,
    };
    if args.dry_run || options.imatrix.is_some() || !options.tensor_types.is_empty() {
        let plan = plan(&args.input, &options)?;
        warn(&args.input, &options, &plan)?;
        if args.dry_run {
            print(args, &plan).context("cannot write the plan to stdout")?;
            return Ok(ExitCode::SUCCESS);
        }
    }
    interrupt::stop_in_order();
    let mut bar = Bar::new("quantize", "tensors", args.quiet || args.verbose);
    let result = run_with_bar(&args.input, &args.output, &options, &mut bar);
    bar.end();
    match result {
        Err(Error::Interrupted) => {
            let output = args.output.to_string_lossy();
            let _ = writeln!(std::io::stderr(), "interrupted: nothing was written to {}", printable(&output));
            // The process must end here, because llama.cpp is still working in another thread.
            exit_now(i32::from(INTERRUPTED))
        }
        other => other?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Quantises with a progress bar. After [`Error::Interrupted`] the process must end with [`exit_now`].
pub fn run_with_bar(
    input: &Path,
    output: &Path,
    options: &QuantizeOptions,
    bar: &mut Bar,
) -> llama::error::Result<()> {
    let mut on_progress = |done: u32, total: u32| {
        bar.show(done.into(), total.into());
        !interrupted()
    };
    quantize(input, output, options, &mut on_progress)
}

/// Warns about options that are probably mistakes.
fn warn(input: &Path, options: &QuantizeOptions, plan: &QuantizePlan) -> llama::error::Result<()> {
    let mut stderr = std::io::stderr().lock();
    for idle in idle_overrides(input, options, plan)? {
        let _ = writeln!(
            stderr,
            "warning: --tensor-type {} has no effect: no tensor name matches the pattern, an earlier pattern matches \
            first, or the tensors already have this type",
            printable(&idle)
        );
    }
    let missing =
        options.imatrix.as_ref().map_or(Vec::new(), |imatrix| tools::imatrix::missing(imatrix, plan));
    if let Some(first) = missing.first() {
        let _ = writeln!(
            stderr,
            "warning: the importance matrix has no data for {} tensors ({}, …), which are quantised without it",
            missing.len(),
            printable(first)
        );
    }
    Ok(())
}

/// Prints the plan as text or JSON.
fn print(args: &Args, plan: &QuantizePlan) -> std::io::Result<()> {
    let mut out = engine_core::terminal::stdout();
    if args.json {
        let json = serde_json::json!({
            "input": args.input,
            "type": args.kind.name(),
            "tensors": plan.tensors,
            "tensor_bytes": plan.tensor_bytes(),
            "bits_per_weight": plan.bits_per_weight(),
        });
        serde_json::to_writer_pretty(&mut out, &json)?;
        return writeln!(out);
    }
    let names: Vec<_> = plan.tensors.iter().map(|tensor| printable(&tensor.name)).collect();
    let width = names.iter().map(|name| name.len()).max().unwrap_or(0);
    for (name, tensor) in names.iter().zip(&plan.tensors) {
        let PlannedTensor { from, to, bytes, .. } = tensor;
        let to = if from == to { "stays".to_string() } else { to.to_string() };
        writeln!(out, "{name:width$}  {from:>8}  {to:>8}  {:>10}", bytes.to_string())?;
    }
    writeln!(out, "{}, {:.2} bits per weight", plan.tensor_bytes(), plan.bits_per_weight())
}

/// Parses a tensor type that quantisation can produce.
fn tensor_type(text: &str) -> Result<GgmlType, String> {
    const NONE: [&str; 7] = ["i8", "i16", "i32", "i64", "f64", "q8_1", "q8_K"];
    let kind = GgmlType::from_name(text).filter(|kind| !NONE.contains(&kind.name()));
    kind.ok_or_else(|| {
        format!(
            "unknown tensor type {text:?}\nhint: use one of ggml's types, such as q4_K, q6_K, q8_0, iq4_xs or f16"
        )
    })
}

fn tensor_override(text: &str) -> Result<(String, GgmlType), String> {
    let (pattern, kind) = text
        .rsplit_once('=')
        .ok_or("it contains no =\nhint: write it as REGEX=TYPE, for example attn_v=q8_0")?;
    // An empty pattern would match everything.
    if pattern.is_empty() {
        return Err(
            "the pattern before the = is empty\nhint: write it as REGEX=TYPE, for example attn_v=q8_0"
                .to_string(),
        );
    }
    Ok((pattern.to_string(), tensor_type(kind)?))
}
