//! Diagnosis of a running llama.cpp process: observes the process, and reports the causes that slow it down.
//!
//! - [`find`] finds the process by its ID, its name, or the port that it listens on.
//! - [`ProcessWatch`] counts what the process does for a second or two, and [`observe`] adds its files, limits and settings.
//!   They only read `/proc`, `/sys` and mapped files; nothing is traced, stopped or changed.
//! - [`diagnose`] is a pure function from an [`Observation`] to a [`Diagnosis`](build_info::Diagnosis). The table
//!   [`RULES`] contains all rules. A rule needs evidence: a wrong cause is worse than a missing one.
//! - [`page`] formats a diagnosis as text.
//!
//! ```
//! let healthy = diagnosis::diagnose(&diagnosis::Observation::default());
//! assert!(healthy.causes.is_empty());
//! ```
#![forbid(unsafe_code)]

mod command_line;
mod diagnose;
mod file_system;
mod find;
mod metrics;
mod observation;
mod page;
mod program;
mod read;
mod rules;

pub use command_line::Flags;
pub use diagnose::diagnose;
pub use find::{FindError, ProcessTarget, find};
pub use metrics::speeds;
pub use observation::{
    ClockFacts, GpuFacts, KernelFacts, LibraryFacts, LibraryPurpose, Neighbour, Observation, ObservedMemory,
    SeenSpeed, ServedModel, ThreadFacts,
};
pub use page::page;
pub use program::ProgramKind;
pub use read::{ProcessWatch, Window, observe};
pub use rules::{RULES, Rule};
