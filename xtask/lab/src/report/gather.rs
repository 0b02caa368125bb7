//! Default files of a report.

use std::path::{Path, PathBuf};

use anyhow::Result;
use build::stages::Builds;
use build::ui::Ui;
use build::workspace::Workspace;

use super::inputs::Inputs;

/// Reads the current builds, the files in target/anneal/results, and this user's records of the machine. Files that
/// cannot be read are skipped with a warning, because the user did not request them.
pub fn gather(workspace: &Workspace, ui: &Ui) -> Result<Inputs> {
    let current = Builds::of(workspace).all()?.into_iter().filter(|found| found.current_of.is_some());
    let mut files: Vec<PathBuf> = current.map(|found| found.path.join("build_info.json")).collect();
    files.extend(results(&workspace.anneal().join("results")));
    let optimisation = workspace.anneal().join("optimize.json");
    // The copy of the previous result exists only until the newer optimisation is finished.
    files.push(crate::optimize::record::last(&optimisation));
    files.push(optimisation);
    if let Some(state) = host::state::folder() {
        files.extend(["roofline.json", "tuning.json"].map(|name| state.join(name)));
    }
    let mut inputs = Inputs::default();
    for file in files.into_iter().filter(|file| file.exists()) {
        if let Err(error) = inputs.read(&file) {
            ui.warn(format_args!("skipping a file: {error:#}"));
        }
    }
    Ok(inputs)
}

/// Returns the JSON files in `folder`, sorted by name; empty if the folder does not exist.
fn results(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let is_result = |path: &PathBuf| {
        path.extension().is_some_and(|extension| extension == "json" || extension == "jsonl")
    };
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_result).collect();
    files.sort();
    files
}
