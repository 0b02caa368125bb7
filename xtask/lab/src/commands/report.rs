//! `report`

use std::path::PathBuf;

use anyhow::Result;
use build::ui::Ui;
use build::workspace::Workspace;

use crate::report::{self, Page};

/// Options of `report`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Files of measurements: of `bench compare --raw`, `bench build`, `bench overhead`, `anneal bench -o jsonl` (or
    /// json), `anneal bench --roofline`, tuning records, build_info.json, `detect`; what a file is, its content says
    /// [default: the current builds, target/anneal/results, this user's roofline and tuning record]
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Folder for report.html, report.md and plots/ [default: target/anneal/report]
    #[arg(short, long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Name the machines
    #[arg(long)]
    hostname: bool,
}

/// What to run where there is nothing to show.
const HOW: &str = "  cargo xtask build-native\n  \
  cargo xtask bench compare --raw target/anneal/results/compare.json\n  \
  anneal bench -m MODEL.gguf -t 1,2,4 -o jsonl > target/anneal/results/threads.jsonl\n\
or name the files that hold what was measured";

/// Gathers what was measured and writes the page.
pub fn run(args: Args, ui: &Ui) -> Result<()> {
    let workspace = Workspace::find()?;
    let given = !args.files.is_empty();
    let inputs = if given { report::read_all(&args.files)? } else { report::gather(&workspace, ui)? };
    if inputs.is_empty() {
        let said =
            if given { "the files hold no measurement" } else { "nothing was built or measured here yet" };
        anyhow::bail!("{said}, so there is nothing to report; run\n{HOW}");
    }
    if !given && inputs.measured_nothing() {
        ui.warn(format_args!("nothing was measured yet, so the page tells of builds only; run\n{HOW}"));
    }
    let page = Page { report: report::page(&inputs, args.hostname) };
    let folder = args.out.unwrap_or_else(|| workspace.anneal().join("report"));
    let written = page.write(&folder)?;
    ui.result(&written, format_args!("{}\n{}", written.html.display(), written.markdown.display()))
}
