//! Command `model fetch`.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use base::exit;
use build::process::Log;
use build::published_models::{MODELS, PublishedModel, cache};
use build::setup::ensure;
use build::ui::{Ui, confirm};
use build::workspace::Workspace;
use toolchain::setup::{Needs, Requirement};

/// Options of `model fetch`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Model to download; without a name, list the models
    name: Option<String>,
    /// Path of the file to write [default: a file in anneal/models in the user's cache folder]
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Accept the licence and download without asking
    #[arg(short, long)]
    yes: bool,
}

/// Downloads a model, or lists the known models.
pub fn run(args: Args, ui: &Ui) -> Result<()> {
    let Some(name) = &args.name else { return list(ui) };
    let model = PublishedModel::named(name)?;
    let out = match args.out {
        Some(out) => out,
        None => cache()
            .context(
                "cannot find the cache folder: neither XDG_CACHE_HOME nor HOME is set to an absolute \
                 path\nhint: give the file's path with --out FILE",
            )?
            .join(model.file),
    };
    ui.say(format_args!(
        "{}: {}, {} to download\nLicence: {} ({})\n{}",
        model.name, model.description, model.download, model.licence, model.terms, model.restrictions
    ));
    if model.is_at(&out) {
        return report(model, &out, false, ui);
    }
    if out.exists() {
        return Err(exit::usage(format!(
            "{} exists and is not {}\nhint: remove it, or write to another file with --out FILE",
            out.display(),
            model.name
        )));
    }
    if !args.yes {
        let terminal = std::io::stdin().is_terminal() && std::io::stderr().is_terminal();
        if !terminal {
            return Err(exit::usage(format!(
                "cannot ask you to accept the licence of {}, because there is no terminal\nhint: accept it \
                 with --yes",
                model.name
            )));
        }
        if !confirm("Accept the licence and download?") {
            return Err(exit::interrupted("nothing was downloaded"));
        }
    }
    let workspace = Workspace::find()?;
    let needs = Needs { required: vec![Requirement::Pip], recommended: Vec::new() };
    ensure(&workspace, &needs, args.yes, ui)?;
    std::fs::create_dir_all(workspace.anneal())
        .with_context(|| format!("cannot create {}", workspace.anneal().display()))?;
    let log = Log::new(workspace.anneal().join("model-fetch.log"), ui.verbose());
    model.fetch(Path::new("python3"), &out, &log, ui)?;
    report(model, &out, true, ui)
}

/// Prints a list of all models.
fn list(ui: &Ui) -> Result<()> {
    let models: Vec<_> = MODELS
        .iter()
        .map(|model| {
            serde_json::json!({
                "name": model.name, "description": model.description, "bytes": model.bytes, "sha256": model.sha256,
                "licence": model.licence, "terms": model.terms,
            })
        })
        .collect();
    let lines: Vec<String> = MODELS
        .iter()
        .map(|model| format!("{}  {}, {}, {}", model.name, model.description, model.bytes, model.licence))
        .collect();
    ui.result(&models, lines.join("\n"))
}

/// Prints the path of the model. `downloaded` is false if the file existed before.
fn report(model: &PublishedModel, out: &Path, downloaded: bool, ui: &Ui) -> Result<()> {
    ui.result(
        &serde_json::json!({
            "name": model.name, "path": out, "bytes": model.bytes, "sha256": model.sha256, "downloaded": downloaded,
        }),
        out.display(),
    )
}
