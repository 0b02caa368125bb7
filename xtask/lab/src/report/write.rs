//! Puts the page into its folder.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use build::fs::write_atomically;
use build::{overwrite_guard, process};
use report::ReportPage;
use serde::Serialize;

/// A page that is to be written.
pub struct Page {
    /// What is on it.
    pub report: ReportPage,
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
    /// that are not part of this one are removed; files of other people stay, and end it.
    pub fn write(&self, folder: &Path) -> Result<Written> {
        let (page, markdown) = (folder.join("report.html"), folder.join("report.md"));
        // A folder of somebody's documents may have one of this name.
        overwrite_guard::check(&page, "no report of ours", report::is_page)?;
        let title = format!("# {}\n", self.report.title);
        overwrite_guard::check(&markdown, "no report of ours", |text| text.starts_with(&title))?;
        let plots = folder.join("plots");
        std::fs::create_dir_all(&plots).with_context(|| format!("cannot make {}", plots.display()))?;
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

/// The plots in `folder` that the page `markdown` shows: ours alone, whatever else lies there.
fn named(markdown: &Path, folder: &Path) -> Vec<PathBuf> {
    let text = std::fs::read_to_string(markdown).unwrap_or_default();
    let names = text.split("](plots/").skip(1).filter_map(|rest| rest.split(')').next());
    names.filter(|name| name.ends_with(".svg") && !name.contains('/')).map(|name| folder.join(name)).collect()
}
