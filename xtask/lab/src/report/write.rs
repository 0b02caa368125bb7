//! Writes the page into its folder.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use build::fs::write_atomically;
use build::{overwrite_guard, process};
use report::ReportPage;
use serde::Serialize;

/// Page to write.
pub struct Page {
    /// Content of the page.
    pub report: ReportPage,
}

/// Paths of the written files.
#[derive(Debug, Serialize)]
pub struct Written {
    /// Path of the page as HTML.
    pub html: PathBuf,
    /// Path of the page as Markdown.
    pub markdown: PathBuf,
    /// Paths of the plots.
    pub plots: Vec<PathBuf>,
}

impl Page {
    /// Writes all files into `folder`. Writes the page last, so that it never refers to a missing plot. Removes plots
    /// of an earlier page that are not part of this page.
    ///
    /// # Errors
    /// If a file cannot be written, or `folder` contains a page that Anneal did not write.
    pub fn write(&self, folder: &Path) -> Result<Written> {
        let (page, markdown) = (folder.join("report.html"), folder.join("report.md"));
        // The user may have a document with this name.
        overwrite_guard::check(&page, "not a report of Anneal", report::is_page)?;
        let title = format!("# {}\n", self.report.title);
        overwrite_guard::check(&markdown, "not a report of Anneal", |text| text.starts_with(&title))?;
        let plots = folder.join("plots");
        std::fs::create_dir_all(&plots).with_context(|| format!("cannot create {}", plots.display()))?;
        let html = self.report.html();
        let earlier = named(&markdown, &plots);
        let mut written = Vec::new();
        for plot in self.report.plots() {
            process::check_interrupted()?;
            let path = plots.join(format!("{}.svg", plot.name));
            write_atomically(&path, plot.file().as_bytes())?;
            written.push(path);
        }
        write_atomically(&markdown, self.report.markdown("plots").as_bytes())?;
        write_atomically(&page, html.as_bytes())?;
        for plot in earlier.iter().filter(|plot| !written.contains(plot)) {
            let _ = std::fs::remove_file(plot);
        }
        Ok(Written { html: page, markdown, plots: written })
    }
}

/// Returns the plots in `folder` that the page `markdown` shows, and no other files.
fn named(markdown: &Path, folder: &Path) -> Vec<PathBuf> {
    let text = std::fs::read_to_string(markdown).unwrap_or_default();
    let names = text.split("](plots/").skip(1).filter_map(|rest| rest.split(')').next());
    names.filter(|name| name.ends_with(".svg") && !name.contains('/')).map(|name| folder.join(name)).collect()
}
