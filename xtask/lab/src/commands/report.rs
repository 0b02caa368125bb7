//! The `report` command.

use std::path::PathBuf;

use anyhow::Result;
use build::ui::Ui;
use build::workspace::Workspace;

use crate::report::{self, Page};

/// Options of `report`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Measurements to include: results of `bench compare --raw`, `bench build`, `bench overhead`, `anneal bench -o
    /// jsonl` (or json), `anneal bench --roofline` and `detect`, tuning records, and build_info.json files. The kind of
    /// each file is detected from its content [default: the current builds, target/anneal/results, this user's roofline
    /// and tuning record]
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Folder for report.html, report.md and plots/ [default: target/anneal/report]
    #[arg(short, long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Include the names of the machines
    #[arg(long)]
    hostname: bool,
}

/// Commands to run if there is nothing to show.
const HOW: &str = "  cargo xtask build-native\n  \
                   cargo xtask bench compare --raw target/anneal/results/compare.json\n  \
                   anneal bench -m MODEL.gguf -t 1,2,4 -o jsonl > target/anneal/results/threads.jsonl\n\
                   or pass files with measurements";

/// Gathers the measurements and writes the page.
pub fn run(args: Args, ui: &Ui) -> Result<()> {
    let workspace = Workspace::find()?;
    let given = !args.files.is_empty();
    let inputs = if given { report::read_all(&args.files)? } else { report::gather(&workspace, ui)? };
    if inputs.is_empty() {
        let said = if given {
            "the files contain no measurement"
        } else {
            "nothing was built or measured in this checkout yet"
        };
        anyhow::bail!("cannot make a report: {said}\nhint: run\n{HOW}");
    }
    if !given && inputs.measured_nothing() {
        ui.warn(format_args!("nothing was measured yet, so the page only shows builds\nhint: run\n{HOW}"));
    }
    let page = Page { report: report::page(&inputs, args.hostname) };
    let folder = args.out.unwrap_or_else(|| workspace.anneal().join("report"));
    let written = page.write(&folder)?;
    ui.result(&written, format_args!("{}\n{}", written.html.display(), written.markdown.display()))
}
