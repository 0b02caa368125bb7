//! Command `anneal logits`.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use base::exit::INTERRUPTED;
use build_info::Bytes;
use build_info::logits::Logits;
use engine_core::logits::{Feed, logits};
use engine_core::model;
use engine_core::settings::{Requested, Settings};
use gguf::partial::PartialFile;
use llama::error::Error;
use llama::{Token, start};

use super::flags::{ContextFlags, DeviceFlags, LoadFlags, ThreadFlags};
use crate::interrupt;

/// Write the logits after every token of a text to a file, to compare builds
///
/// Format of the file: "ALOGITS1"; the vocabulary size and the number of rows as u32; the token before each row as
/// u32; and the rows as f32. All numbers are little-endian.
#[derive(clap::Args, Debug)]
#[command(after_help = super::LLAMA_FLAGS_HELP)]
pub struct Args {
    /// GGUF model
    #[arg(short, long, value_name = "FILE")]
    model: PathBuf,
    /// Text file in UTF-8
    #[arg(short, long, value_name = "FILE", conflicts_with = "tokens", required_unless_present = "tokens")]
    file: Option<PathBuf>,
    /// File with token numbers, separated by white space, instead of a text
    #[arg(long, value_name = "FILE")]
    tokens: Option<PathBuf>,
    /// Output file
    #[arg(short, long, value_name = "FILE")]
    out: PathBuf,
    /// Evaluate one token per call, with the decode kernels
    #[arg(long)]
    step: bool,
    /// Number of tokens to generate greedily after the text
    #[arg(long, value_name = "N", default_value_t = 0)]
    greedy: u32,
    #[command(flatten)]
    context: ContextFlags,
    #[command(flatten)]
    threads: ThreadFlags,
    #[command(flatten)]
    load: LoadFlags,
    #[command(flatten)]
    offload: DeviceFlags,
}

pub fn run(args: &Args) -> Result<ExitCode> {
    let mut requested = Requested::default();
    args.context.ask(&mut requested);
    args.threads.ask(&mut requested);
    args.load.ask(&mut requested);
    args.offload.ask(&mut requested);
    let runtime_host = super::placed_runtime_host(&requested)?;
    let settings = Settings::resolve(&requested, &runtime_host)?;
    super::warn_of(&settings);
    // The text is read before the model is loaded, so that errors in the file are reported early.
    refuse_foreign(&args.out)?;
    let numbers = args.tokens.as_deref().map(numbers).transpose()?;
    let text = args.file.as_deref().map(read).transpose()?;

    start(args.load.verbose);
    interrupt::stop_in_order();
    let model = model::open(&args.model, &settings, &runtime_host)?;
    let tokens = match numbers {
        Some(numbers) => numbers,
        None => model.tokenize(&text.unwrap_or_default())?,
    };
    let mut context = model::context(&model, &settings, &runtime_host, true)?;
    let all = match logits(&mut context, &tokens, Feed { step: args.step, greedy: args.greedy }) {
        Err(Error::Interrupted) => {
            let _ = writeln!(std::io::stderr(), "interrupted: nothing was written to {}", args.out.display());
            return Ok(ExitCode::from(INTERRUPTED));
        }
        other => other?,
    };
    let bytes = all.to_bytes();
    let partial = PartialFile::beside(&args.out, Bytes(bytes.len() as u64))?;
    partial
        .open()?
        .write_all(&bytes)
        .with_context(|| format!("cannot write the logits to {}", args.out.display()))?;
    partial.commit()?;
    Ok(ExitCode::SUCCESS)
}

/// Refuses to overwrite a file that contains no logits. Examines only regular files; [`PartialFile`] refuses all
/// others.
fn refuse_foreign(out: &Path) -> Result<()> {
    let is_file = std::fs::metadata(out).is_ok_and(|found| found.is_file() && found.len() > 0);
    let mut beginning = Vec::new();
    if is_file {
        let file = std::fs::File::open(out).with_context(|| format!("cannot read {}", out.display()))?;
        file.take(8).read_to_end(&mut beginning).with_context(|| format!("cannot read {}", out.display()))?;
    }
    anyhow::ensure!(
        !is_file || Logits::begins(&beginning),
        "cannot overwrite {}: it does not contain logits\nhint: choose another path, or remove the file",
        out.display()
    );
    Ok(())
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read {} as UTF-8 text", path.display()))
}

fn numbers(path: &Path) -> Result<Vec<Token>> {
    let number = |word: &str| {
        word.parse().map_err(|_| Error::Usage(format!("{}: {word:?} is not a token number", path.display())))
    };
    Ok(read(path)?.split_whitespace().map(number).collect::<std::result::Result<_, _>>()?)
}
