//! `model synth`

use std::path::{Path, PathBuf};

use anyhow::Result;
use base::exit;
use build::models::Maker;
use build::ui::Ui;
use build::workspace::Workspace;
use build_info::Bytes;
use gguf::GgufFile;
use gguf::synth::{self, Preset};

/// Options of `model synth`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Shape: tiny, moe-tiny, bert-tiny (embeddings alone), swa-tiny (a sliding window), small-qwen2, small-llama,
    /// llama-1b, qwen2.5-1.5b, or the last two with four layers alone: llama-1b-4l, qwen2.5-1.5b-4l; moe-1b (a mixture of
    /// experts)
    #[arg(long, required_unless_present = "lora_of")]
    preset: Option<String>,
    /// A LoRA adapter for this model, in place of a model
    #[arg(long, value_name = "FILE", conflicts_with_all = ["preset", "quant"])]
    lora_of: Option<PathBuf>,
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
    if let Some(model) = &args.lora_of {
        return adapter(model, &args, ui);
    }
    let given = args.preset.as_deref().unwrap_or_default();
    let Some(preset) = Preset::all().into_iter().find(|preset| preset.name() == given) else {
        let names = Preset::all().map(Preset::name);
        return Err(exit::usage(format!("no preset {given:?}: there are {}", names.join(", "))));
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
    let workspace = Workspace::find()?;
    let engine =
        ENGINES.iter().map(|profile| workspace.current(profile).join("bin/anneal")).find(|p| p.is_file());
    Maker { workspace: &workspace, engine: engine.as_deref(), ui }
        .write(preset, &quant, args.seed, &args.out)?;
    let size = std::fs::metadata(&args.out).map_or(0, |meta| meta.len());
    ui.result(
        &serde_json::json!({
            "path": args.out, "preset": preset.name(), "quant": quant, "seed": args.seed, "bytes": size,
        }),
        format_args!("{} ({} {quant}, {})", args.out.display(), preset.name(), Bytes(size)),
    )
}

/// Writes a LoRA adapter for `model`.
fn adapter(model: &Path, args: &Args, ui: &Ui) -> Result<()> {
    let made = synth::write_adapter(&args.out, &GgufFile::open(model)?, args.seed)?;
    ui.result(
        &serde_json::json!({
            "path": args.out, "lora_of": model, "seed": args.seed, "bytes": made.tensor_bytes, "tensors": made.tensors,
        }),
        format_args!("{} (LoRA of {}, {})", args.out.display(), model.display(), made.tensor_bytes),
    )
}
