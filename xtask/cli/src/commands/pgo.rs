//! Command `pgo`.

use anyhow::Result;
pub use build::pgo::job::Args;
use build::pgo::job::optimize;
use build::ui::Ui;

/// Instruments, trains, merges, rebuilds, compares, and makes the faster build current.
pub fn run(args: Args, ui: &Ui) -> Result<()> {
    match optimize(&args, ui)? {
        Some((info, text)) => ui.result(&info, text),
        None => Ok(()),
    }
}
