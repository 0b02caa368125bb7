//! The `recommend` command.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use build::described::{read_host, read_json};
use build::ui::Ui;
use build::workspace::Workspace;
use build::{profile, tools};
use build_info::{Host, Roofline};

use crate::recommend::speed::MEASURE;
use crate::recommend::subject::{model_of_shape, read_model};
use crate::recommend::{Question, preset, recommend};

/// Options of `recommend`.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("subject").required(true).args(["model", "shape"]))]
pub struct Args {
    /// GGUF file of the model, or the first part of a split model; only the header is read
    #[arg(short, long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// Shape of a model that need not be on this machine: llama-3.1-8b, qwen2.5-7b, qwen3-30b-a3b, …; an unknown name
    /// prints a list of all shapes
    #[arg(long, value_name = "NAME")]
    shape: Option<String>,
    /// Quantisation of the model given by --shape
    #[arg(long, value_name = "TYPE", default_value = "Q4_K_M", conflicts_with = "model")]
    quant: String,
    /// Recommend settings for the machine described in this file, which is the output of `cargo xtask detect`
    #[arg(long, value_name = "FILE")]
    host: Option<PathBuf>,
    /// File with the machine's measured limits [default: the last result of `anneal bench --roofline`, if it was
    /// measured on the same CPU]
    #[arg(long, value_name = "FILE")]
    roofline: Option<PathBuf>,
    /// Context size in tokens, rounded up to a multiple of 256 [default: the preset's, or 4096; less if the model was
    /// trained with less, or if memory is too small]
    #[arg(short = 'c', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 28))]
    ctx_size: Option<u32>,
}

/// Description of the file that `--roofline` accepts, and the command that makes one.
const ROOFLINE_FILE: &str =
    "a machine's measured limits\nhint: use the file that `anneal bench --roofline` writes on that machine";

/// Recommends a build, settings and a quantisation for a model on a machine, with the reasons.
pub fn run(args: Args, ui: &Ui) -> Result<()> {
    let workspace = Workspace::find()?;
    let model = match (&args.model, &args.shape) {
        (Some(path), _) => read_model(path)?,
        (None, shape) => model_of_shape(shape.as_deref().unwrap_or_default(), &args.quant)?,
    };
    let host: Host = match &args.host {
        Some(path) => read_host(path)?,
        None => tools::host(ui),
    };
    let roofline = match &args.roofline {
        Some(path) => Some(given_roofline(path, &host, ui)?),
        None => remembered_roofline(&host, ui),
    };
    let presets = preset::load(&workspace.runtime_presets())?;
    let profiles = profile::names(&workspace.build_profiles())?;
    let path = args.model.map_or("MODEL.gguf".into(), |path| path.to_string_lossy().into_owned());
    let answer = recommend(&Question {
        model: &model,
        path: &path,
        host: &host,
        roofline: roofline.as_ref(),
        presets: &presets,
        profiles: &profiles,
        n_ctx: args.ctx_size,
    });
    ui.result(&answer, &answer)
}

/// Reads the limits in `path`, which the user supplied for `host`.
fn given_roofline(path: &Path, host: &Host, ui: &Ui) -> Result<Roofline> {
    let roofline: Roofline = read_json(path, ROOFLINE_FILE)?;
    if roofline.cpu != host.cpu.name {
        ui.warn(format_args!(
            "{} was measured on {}, but the recommendation is for {}; using it anyway, because --roofline specifies it",
            path.display(),
            roofline.cpu,
            host.cpu.name
        ));
    }
    Ok(roofline)
}

/// Returns the most recently measured limits, if they were measured on `host`'s CPU.
fn remembered_roofline(host: &Host, ui: &Ui) -> Option<Roofline> {
    let path = host::state::folder()?.join("roofline.json");
    if !path.is_file() {
        return None;
    }
    let read = build::fs::content(&path)
        .context("cannot read the file")
        .and_then(|text| Ok(serde_json::from_slice::<Roofline>(&text)?));
    match read {
        Ok(roofline) if roofline.cpu == host.cpu.name => Some(roofline),
        Ok(_) => None,
        Err(error) => {
            ui.warn(format_args!("ignoring {}: {error:#}\nhint: {MEASURE}", path.display()));
            None
        }
    }
}
