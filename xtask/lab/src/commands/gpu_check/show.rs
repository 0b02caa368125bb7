//! The `gpu-check show` command.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use build::fs;
use build::ui::Ui;

use crate::gpu_check::report::SCHEMA_VERSION;
use crate::gpu_check::{Report, page};

/// Options of `gpu-check show`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Report that `gpu-check run` wrote
    file: PathBuf,
    /// Print a Markdown page for docs/results instead of the table
    #[arg(long)]
    markdown: bool,
}

/// Prints a report.
pub fn run(args: &Args, ui: &Ui) -> Result<()> {
    let report = read(&args.file)?;
    match args.markdown {
        true => ui.result(&report, page::markdown(&report)),
        false => ui.result(&report, page::text(&report)),
    }
}

/// Reads the report in the file `path`.
///
/// # Errors
/// If the file is not a report, or has a later format.
pub fn read(path: &Path) -> Result<Report> {
    #[derive(serde::Deserialize)]
    struct ReportVersion {
        schema_version: String,
    }
    let shown = path.display();
    let text = fs::text(path).with_context(|| format!("cannot read the report {shown}"))?;
    let found: ReportVersion = serde_json::from_str(&text)
        .with_context(|| format!("{shown} is not a report that `gpu-check run` wrote"))?;
    let major = |version: &str| version.split('.').next().unwrap_or_default().to_string();
    if major(&found.schema_version) != major(SCHEMA_VERSION) {
        bail!(
            "{shown} has format {}, but this program reads format {SCHEMA_VERSION}\nhint: use the version of \
             `gpu-check show` that matches the report",
            found.schema_version
        );
    }
    serde_json::from_str(&text)
        .with_context(|| format!("{shown} is damaged, or is not a report from gpu-check"))
}
