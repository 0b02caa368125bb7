//! Command `anneal imatrix`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, bail};
use base::exit::INTERRUPTED;
use build_info::words::printable;
use engine_core::model;
use engine_core::settings::{Requested, Settings};
use gguf::GgufFile;
use llama::quantize::Imatrix;
use llama::start;
use tools::eval::{self, ChunkedText, built_in_text};
use tools::imatrix::{self, collect};
use tools::quantize::refuse_the_same;

use super::bar::Bar;
use super::flags::{LoadFlags, ThreadFlags, whole};
use crate::interrupt;

/// Collect an importance matrix, which improves low-bit quantisation
///
/// Evaluates text, and sums the squared inputs to each column of each matrix. `anneal quantize --imatrix` then keeps
/// more precision in columns with large inputs. Use a text of a few hundred thousand words that resembles the model's
/// future output. The output file has llama-imatrix's GGUF format. Ctrl-C stops the evaluation and writes the data
/// collected so far.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// GGUF model, unquantised or Q8_0
    #[arg(short, long, value_name = "FILE")]
    model: PathBuf,
    /// Text file in UTF-8 [default: 14 KB of built-in mixed text, enough for a first try]
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Output file
    #[arg(short, long, value_name = "FILE", default_value = "imatrix.gguf")]
    out: PathBuf,
    /// Number of tokens per chunk
    #[arg(short = 'c', long = "ctx", value_name = "N", default_value_t = eval::DEFAULT_CHUNK, value_parser = whole(super::eval::CHUNK))]
    chunk: u32,
    /// Maximum number of chunks [default: all]
    #[arg(long, value_name = "N", value_parser = whole(super::eval::CHUNKS))]
    chunks: Option<u32>,
    /// Also collect data for the output matrix; quantisation usually works better without this data
    #[arg(long)]
    process_output: bool,
    /// Do not print progress
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    threads: ThreadFlags,
    #[command(flatten)]
    load: LoadFlags,
}

pub fn run(args: &Args) -> Result<ExitCode> {
    let mut requested = Requested::default();
    args.threads.ask(&mut requested);
    args.load.ask(&mut requested);
    let runtime_host = super::placed_runtime_host(&requested)?;
    let settings = Settings::resolve(&requested, &runtime_host)?;
    super::warn_of(&settings);
    super::eval::check(args.chunk, args.chunks)?;
    let text = match &args.file {
        Some(path) => super::read_text(path)?,
        None => built_in_text(),
    };
    // The output path is checked before the long evaluation, to make sure that the result can be written.
    refuse_the_same(&args.model, &args.out)?;
    drop(gguf::partial::PartialFile::beside(&args.out, imatrix::file_bytes(&args.model)?)?);
    check_replaced(&args.out)?;
    warn_of_quantised(&args.model);

    start(args.load.verbose);
    interrupt::stop_in_order();
    let model = model::open(&args.model, &settings, &runtime_host)?;
    let text = ChunkedText::new(&model, &text, args.chunk, args.chunks)?;
    let mut bar = Bar::new("collect", "chunks", args.quiet || args.load.verbose);
    let mut show = |done, all| bar.show(done, all);
    let collected = collect(&model, &text, args.process_output, &settings, &runtime_host, &mut show);
    bar.end();
    let collected = collected?;

    let interrupted = collected.chunks < text.chunks();
    let mut stderr = std::io::stderr().lock();
    let out = args.out.to_string_lossy();
    let out = printable(&out);
    if collected.chunks == 0 {
        let _ = writeln!(stderr, "interrupted: nothing was written to {out}");
        return Ok(ExitCode::from(INTERRUPTED));
    }
    let dataset = args.file.as_ref().map_or("anneal's own text".into(), |path| path.to_string_lossy());
    let imatrix = Imatrix {
        file: args.out.to_string_lossy().into_owned(),
        path: args.out.clone(),
        entries: collected.entries.into_iter().collect(),
        datasets: vec![dataset.into_owned()],
        chunks: collected.chunks as u32,
    };
    tools::imatrix::write(&imatrix, &args.out, args.chunk)?;
    let idle = idle(&imatrix);
    if idle > 0 {
        let _ = writeln!(
            stderr,
            "warning: {idle} experts received no token, so quantisation will treat all their columns equally\nhint: \
            use a longer text"
        );
    }
    if !args.quiet {
        let (entries, chunks) = (imatrix.entries.len(), imatrix.chunks);
        let _ = writeln!(stderr, "{out}: {entries} matrices, {chunks} chunks");
    }
    if interrupted {
        let _ = writeln!(
            stderr,
            "interrupted: the file contains {} of {} chunks",
            collected.chunks,
            text.chunks()
        );
        return Ok(ExitCode::from(INTERRUPTED));
    }
    Ok(ExitCode::SUCCESS)
}

/// Checks that the output file would overwrite only an older importance matrix or an empty file.
fn check_replaced(out: &Path) -> Result<()> {
    let there = std::fs::metadata(out).is_ok_and(|there| there.len() > 0);
    if there && tools::imatrix::read(out).is_err() {
        bail!(
            "cannot overwrite {}: it is not an importance matrix\nhint: choose another output file",
            out.display()
        );
    }
    Ok(())
}

/// Warns that a quantised model's errors become part of the importance matrix. There is no warning for Q8_0, because
/// its errors are too small to matter.
fn warn_of_quantised(model: &Path) {
    // Errors in the file are reported when the model is loaded.
    let Ok(file) = GgufFile::open(model) else { return };
    let rest = file.other_parts().unwrap_or_default();
    let mut tensors = std::iter::once(&file).chain(&rest).flat_map(GgufFile::tensors);
    if let Some(tensor) = tensors.find(|tensor| tensor.kind.is_quantised() && tensor.kind.name() != "q8_0") {
        let _ = writeln!(
            std::io::stderr(),
            "warning: {} is quantised (it contains {} tensors), and its quantisation errors become part of the \
            importance matrix\nhint: use the F16 or BF16 model",
            printable(&model.to_string_lossy()),
            tensor.kind
        );
    }
}

/// Returns the number of experts that received no token.
fn idle(imatrix: &Imatrix) -> usize {
    imatrix.entries.values().flat_map(|entry| &entry.counts).filter(|count| **count == 0.0).count()
}
