//! Puts the page into its folder.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use report::Report;
use serde::Serialize;

use crate::fs::write_atomically;
use crate::process;

/// A page that is to be written.
pub struct Page {
    /// What is on it.
    pub report: Report,
}

/// Where everything is.
#[derive(Debug, Serialize)]
pub struct Written {
    /// The page.
    pub html: PathBuf,
    /// The same as Markdown.
    pub markdown: PathBuf,
    /// The plots.
    pub plots: Vec<PathBuf>,
}

impl Page {
    /// Writes all of it into `folder`, the page last: it never shows a plot that is not there. Plots of an earlier page
    /// that are not part of this one are removed.
    pub fn write(&self, folder: &Path) -> Result<Written> {
        let plots = folder.join("plots");
        std::fs::create_dir_all(&plots).with_context(|| format!("cannot make {}", plots.display()))?;
        let html = self.report.html();
        let mut written = Vec::new();
        for plot in self.report.plots() {
            process::check_interrupted()?;
            let path = plots.join(format!("{}.svg", plot.name));
            write_atomically(&path, plot.file().as_bytes())?;
            written.push(path);
        }
        let (page, markdown) = (folder.join("report.html"), folder.join("report.md"));
        write_atomically(&markdown, self.report.markdown("plots").as_bytes())?;
        write_atomically(&page, html.as_bytes())?;
        remove_others(&plots, &written);
        Ok(Written { html: page, markdown, plots: written })
    }
}

/// Removes plots with names that we give (`07-decode.svg`) and that are not in `kept`.
fn remove_others(folder: &Path, kept: &[PathBuf]) {
    let kept: BTreeSet<&PathBuf> = kept.iter().collect();
    let ours = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let number = name.split('-').next().unwrap_or_default();
        name.ends_with(".svg") && number.len() >= 2 && number.bytes().all(|byte| byte.is_ascii_digit())
    };
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    for path in entries.filter(|path| ours(path) && !kept.contains(path)) {
        let _ = std::fs::remove_file(path);
    }
}
