//! What is shown when no file is named.

use std::path::{Path, PathBuf};

use anyhow::Result;
use build::stages::Builds;
use build::ui::Ui;
use build::workspace::Workspace;

use super::inputs::Inputs;

/// The current builds, what lies in target/anneal/results, and what this user's programs learned of the machine. A file
/// that is not understood is told of and left aside: nobody asked for it by name.
pub fn gather(workspace: &Workspace, ui: &Ui) -> Result<Inputs> {
    let current = Builds::of(workspace).all()?.into_iter().filter(|found| found.current_of.is_some());
    let mut files: Vec<PathBuf> = current.map(|found| found.path.join("build_info.json")).collect();
    files.extend(results(&workspace.anneal().join("results")));
    let optimisation = workspace.anneal().join("optimize.json");
    // There only as long as the newer one is not finished.
    files.push(crate::optimize::record::last(&optimisation));
    files.push(optimisation);
    if let Some(state) = host::state::folder() {
        files.extend(["roofline.json", "tuning.json"].map(|name| state.join(name)));
    }
    let mut inputs = Inputs::default();
    for file in files.into_iter().filter(|file| file.exists()) {
        if let Err(error) = inputs.read(&file) {
            ui.warn(format_args!("{error:#}; it is left out"));
        }
    }
    Ok(inputs)
}

/// JSON files in `folder`, by name; none of a folder that is not there.
fn results(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let is_result = |path: &PathBuf| {
        path.extension().is_some_and(|extension| extension == "json" || extension == "jsonl")
    };
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_result).collect();
    files.sort();
    files
}
