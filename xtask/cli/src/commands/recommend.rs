//! `recommend`

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use build_info::{Host, Roofline};
use gguf::{GgufFile, Scalar, Value};

use super::plan::{read_host, read_json};
use crate::recommend::model_facts::{Metadata, ModelFacts, Tensor};
use crate::recommend::speed::MEASURE;
use crate::recommend::{Question, mixture, preset, recommend, shapes};
use crate::ui::Ui;
use crate::workspace::Workspace;
use crate::{exit, profile, tools};

/// Options of `recommend`.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("subject").required(true).args(["model", "shape"]))]
pub struct Args {
    /// The model: a GGUF file, of a split model the first part; only its header is read
    #[arg(short, long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// A model that is not there, by its shape: llama-3.1-8b, qwen2.5-7b, qwen3-30b-a3b, …; a wrong name lists all
    #[arg(long, value_name = "NAME")]
    shape: Option<String>,
    /// Quantisation of --shape
    #[arg(long, value_name = "TYPE", default_value = "Q4_K_M", conflicts_with = "model")]
    quant: String,
    /// Recommend for the machine in this file, as `cargo xtask detect` prints it
    #[arg(long, value_name = "FILE")]
    host: Option<PathBuf>,
    /// The machine's measured limits [default: the last of `anneal bench --roofline` if it is of the same CPU]
    #[arg(long, value_name = "FILE")]
    roofline: Option<PathBuf>,
    /// Tokens that the context shall hold [default: the preset's, or 4096; less where it does not fit]
    #[arg(short = 'c', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 28))]
    ctx_size: Option<u32>,
}

/// What `--roofline` takes, and how to make one.
const ROOFLINE_FILE: &str =
    "the measured limits of a machine: run `anneal bench --roofline` there and give the file that it writes";

/// Says which build, settings and quantisation suit a model on a machine, and why.
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

/// The facts of the model at `path`, all parts of it.
pub fn read_model(path: &Path) -> Result<ModelFacts> {
    let first = GgufFile::open(path)?;
    let others = first.other_parts()?;
    let tensors = std::iter::once(&first)
        .chain(&others)
        .flat_map(|file| file.tensors())
        .map(|tensor| Tensor { name: tensor.name.clone(), dims: tensor.dims.clone(), kind: tensor.kind });
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    ModelFacts::read(&Header(&first), tensors.collect(), &name)
}

struct Header<'a>(&'a GgufFile);

impl Metadata for Header<'_> {
    fn text(&self, key: &str) -> Option<String> {
        match self.0.get(key)? {
            Value::Scalar(Scalar::String(text)) => Some(text.clone()),
            _ => None,
        }
    }

    fn numbers(&self, key: &str) -> Option<Vec<u64>> {
        // A file that can no longer be read was removed a moment ago: as if the key were not there.
        self.0.numbers(key).ok().flatten()
    }
}

/// The facts of a known model as `quant`.
pub fn model_of_shape(name: &str, quant: &str) -> Result<ModelFacts> {
    let quant = quant.to_ascii_uppercase();
    let Some(shape) = shapes::find(name) else {
        let names: Vec<&str> = shapes::SHAPES.iter().map(|shape| shape.name).collect();
        return Err(exit::usage(format!("no shape {name:?}: there are {}", names.join(", "))));
    };
    let Some(quant) = mixture::find(&quant) else {
        let names: Vec<&str> = mixture::QUANTS.iter().map(|quant| quant.name).collect();
        return Err(exit::usage(format!("no quantisation {quant:?} here: there are {}", names.join(", "))));
    };
    let model = ModelFacts::read(shape, shape.tensors(), name)?;
    Ok(mixture::quantise(&model, quant).model)
}

/// The limits in `path`, which the user says are the host's.
fn given_roofline(path: &Path, host: &Host, ui: &Ui) -> Result<Roofline> {
    let roofline: Roofline = read_json(path, ROOFLINE_FILE)?;
    if roofline.cpu != host.cpu.name {
        ui.warn(format_args!(
            "{} was measured on {}, and this is for {}: taken because it was given",
            path.display(),
            roofline.cpu,
            host.cpu.name
        ));
    }
    Ok(roofline)
}

/// The limits that were measured last, if they are those of `host`'s CPU.
fn remembered_roofline(host: &Host, ui: &Ui) -> Option<Roofline> {
    let path = host::state::folder()?.join("roofline.json");
    if !path.is_file() {
        return None;
    }
    let read = crate::fs::content(&path)
        .context("cannot read it")
        .and_then(|text| Ok(serde_json::from_slice::<Roofline>(&text)?));
    match read {
        Ok(roofline) if roofline.cpu == host.cpu.name => Some(roofline),
        Ok(_) => None,
        Err(error) => {
            ui.warn(format_args!("{} is not taken: {error:#}; {MEASURE}", path.display()));
            None
        }
    }
}
