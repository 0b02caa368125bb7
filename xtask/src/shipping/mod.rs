//! Packing and installing, which the program `ship` does.

mod again;
mod contents;
mod needs;
mod parts;

use anyhow::Result;
use ship::{Answer, Order};

use crate::program::Program;
use crate::ui::Ui;
use crate::workspace::Workspace;

pub use again::Again;
pub use contents::{Contents, name, planned_name, record};
pub use needs::Needs;
pub use parts::parts;

/// What packs and installs.
const SHIP: Program = Program { name: "ship", features: "tools", purpose: "packs and installs" };

/// Has `ship` carry out `order`.
///
/// # Errors
/// Those of the program, with its exit code.
pub fn give(workspace: &Workspace, order: &Order, ui: &Ui) -> Result<Answer> {
    SHIP.give(workspace, order, ui)
}

/// What answers another question than was asked.
pub fn unexpected(answer: &Answer) -> anyhow::Error {
    SHIP.unexpected(answer)
}
