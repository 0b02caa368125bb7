//! Command `detect`.

use anyhow::Result;
use build::tools;
use build::ui::Ui;

/// Options of `detect`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Leave the machine's name out of the description
    #[arg(long)]
    no_hostname: bool,
}

/// Prints the description of the machine as JSON, for `plan --host`.
pub fn run(args: Args, ui: &Ui) -> Result<()> {
    let mut host = tools::host(ui);
    if args.no_hostname {
        host.hostname = None;
    }
    ui.result(&host, serde_json::to_string_pretty(&host)?)
}
