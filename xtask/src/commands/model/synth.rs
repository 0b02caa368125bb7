//! `model synth`

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use build_info::Bytes;
use gguf::synth::{self, Options, Precision, Preset};

use crate::exit;
use crate::process::{self, Log, Run};
use crate::ui::Ui;
use crate::workspace::Workspace;

/// Options of `model synth`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Shape: tiny, moe-tiny, llama-1b or qwen2.5-1.5b
    #[arg(long)]
    preset: String,
    /// The file to write
    #[arg(short, long, value_name = "FILE")]
    out: PathBuf,
    /// Quantisation: F16, F32, or any that llama.cpp knows (Q4_K_M, Q8_0, …; those need a finished build)
    #[arg(long, default_value = "F16", value_name = "TYPE")]
    quant: String,
    /// The same seed gives the same file
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

/// Builds whose engine may quantise, best first.
const ENGINES: &[&str] = &["native", "portable", "dev", "upstream-default"];

/// Writes a model.
pub fn run(args: Args, ui: &Ui) -> Result<()> {
    let Some(preset) = Preset::all().into_iter().find(|preset| preset.name() == args.preset) else {
        let names = Preset::all().map(Preset::name);
        return Err(exit::usage(format!("no preset {:?}: there are {}", args.preset, names.join(", "))));
    };
    let quant = args.quant.to_ascii_uppercase();
    // Before gigabytes are written for nothing.
    let known: Vec<&str> = (0..64).filter_map(gguf::file_type_name).collect();
    if !known.contains(&quant.as_str()) {
        return Err(exit::usage(format!(
            "no quantisation {:?}: llama.cpp has {}",
            args.quant,
            known.join(", ")
        )));
    }
    write(preset, &quant, args.seed, &args.out, ui)?;
    let size = std::fs::metadata(&args.out).map_or(0, |meta| meta.len());
    ui.result(
        &serde_json::json!({
            "path": args.out, "preset": preset.name(), "quant": quant, "seed": args.seed, "bytes": size,
        }),
        format_args!("{} ({} {quant}, {})", args.out.display(), preset.name(), Bytes(size)),
    )
}

/// Writes a model for another command; `quant` in capitals.
pub fn write(preset: Preset, quant: &str, seed: u64, out: &Path, ui: &Ui) -> Result<()> {
    match quant {
        "F16" => weights(preset, Precision::F16, seed, out, ui),
        "F32" => weights(preset, Precision::F32, seed, out, ui),
        _ => quantised(preset, quant, seed, out, ui),
    }
}

fn weights(preset: Preset, precision: Precision, seed: u64, out: &Path, ui: &Ui) -> Result<()> {
    let progress = std::cell::RefCell::new(ui.progress("weights"));
    let step = |done: Bytes, total: Bytes| {
        progress.borrow_mut().step(done.0 >> 20, total.0 >> 20, "MiB");
        if process::interrupted() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let options = Options { precision, seed, progress: Some(&step), ..Options::new(preset) };
    let written = synth::write(out, &options);
    progress.into_inner().finish();
    match written {
        Ok(_) => Ok(()),
        Err(synth::Error::Stopped { .. }) => {
            Err(exit::interrupted("stopped: nothing was written, and what was there before stays"))
        }
        Err(error) => Err(error.into()),
    }
}

/// F16 beside the destination first, then the mixture that llama.cpp's quantiser makes of it.
fn quantised(preset: Preset, quant: &str, seed: u64, out: &Path, ui: &Ui) -> Result<()> {
    let workspace = Workspace::find()?;
    let engine =
        ENGINES.iter().map(|profile| workspace.current(profile).join("bin/anneal")).find(|p| p.is_file());
    let Some(engine) = engine else {
        bail!(
            "quantising to {quant} is done by the engine, and there is no finished build: run `cargo xtask \
             build-native` first, or ask for F16 or F32"
        );
    };
    let name = out.file_name().context("the output has no file name")?.to_string_lossy().into_owned();
    let folder = match out.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let beside = Beside(folder.join(format!(".{name}.f16.{}", std::process::id())));
    weights(preset, Precision::F16, seed, &beside.0, ui)?;

    let progress = ui.progress("quantise");
    let log = Log::new(workspace.anneal().join("quantize.log"), ui.verbose());
    let done = Run::new(engine, &log)
        .args(["quantize"])
        .args([&beside.0, &out.to_path_buf()])
        .args([quant])
        .watch(|_, line| progress.message(line.trim()));
    progress.finish();
    done
}

/// A file that goes when this does.
struct Beside(PathBuf);

impl Drop for Beside {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
