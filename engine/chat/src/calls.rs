//! Formats in which models write tool calls.
//!
//! A format describes the markers around a call and the structure of the call itself. [`derive`] finds the format by
//! rendering calls with the model's chat template, and [`CallReader`] reads any format. For templates that do not
//! render calls as the model writes them, [`CallFormat::of_template`] chooses a format by the markers that the template
//! contains.

mod arguments;
mod derive;
mod format;
mod object;
mod partial;
mod python;
mod reader;
mod tags;
mod write;

pub(super) use derive::{Probe, derive, shows_call};
pub use format::CallFormat;
pub(super) use partial::overlap;
pub use reader::CallReader;

#[cfg(test)]
mod tests;
