//! Command `pgo`.

use anyhow::Result;
pub use build::pgo::job::Args;
use build::pgo::job::optimize;
use build::ui::Ui;

/// Makes an instrumented build, trains it, rebuilds with the merged profile, compares both builds, and makes the
/// faster one current.
pub fn run(args: Args, ui: &Ui) -> Result<()> {
    match optimize(&args, ui)? {
        Some((info, text)) => ui.result(&info, text),
        None => Ok(()),
    }
}
