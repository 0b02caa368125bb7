//! Command `model synth`.

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
    /// Shape: tiny, moe-tiny, bert-tiny (embeddings only), rank-tiny (reranker), fim-tiny (fills in the middle),
    /// swa-tiny (sliding window), hybrid-tiny (attention and recurrent states), recurrent-tiny (no attention),
    /// small-qwen2, small-llama, llama-1b, qwen2.5-1.5b, moe-1b (mixture of experts), llama-1b-4l or qwen2.5-1.5b-4l
    /// (the last two have only four layers)
    #[arg(long, required_unless_present = "lora_of")]
    preset: Option<String>,
    /// Make a LoRA adapter for this model instead of a model
    #[arg(long, value_name = "FILE", conflicts_with_all = ["preset", "quant"])]
    lora_of: Option<PathBuf>,
    /// Path of the file to write
    #[arg(short, long, value_name = "FILE")]
    out: PathBuf,
    /// Quantisation: F16, F32, or another llama.cpp type (Q4_K_M, Q8_0, …); types other than F16 and F32 require a
    /// finished build
    #[arg(long, default_value = "F16", value_name = "TYPE")]
    quant: String,
    /// Seed of the random weights; the same seed gives the same file
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

/// Profiles whose engine can quantise a model, in order of preference.
const ENGINES: &[&str] = &["native", "portable", "dev", "upstream-default"];

/// Writes a model.
pub fn run(args: Args, ui: &Ui) -> Result<()> {
    if let Some(model) = &args.lora_of {
        return adapter(model, &args, ui);
    }
    let given = args.preset.as_deref().unwrap_or_default();
    let Some(preset) = Preset::all().into_iter().find(|preset| preset.name() == given) else {
        let names = Preset::all().map(Preset::name);
        return Err(exit::usage(format!(
            "unknown preset {given:?}\nhint: available presets: {}",
            names.join(", ")
        )));
    };
    let quant = args.quant.to_ascii_uppercase();
    // Check the quantisation before writing gigabytes.
    let known: Vec<&str> = (0..64).filter_map(gguf::file_type_name).collect();
    if !known.contains(&quant.as_str()) {
        return Err(exit::usage(format!(
            "unknown quantisation {:?}\nhint: llama.cpp supports {}",
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
