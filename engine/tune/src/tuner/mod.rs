//! Finds the fastest settings for a model on this machine, and writes them down.
//!
//! Stage by stage ([`space`]), each of which changes one thing of the best so far: a full grid of all settings would
//! take days and find no more, since the phases and what bounds them are known. Within a stage [`halving`]. Every
//! candidate runs in a process of its own ([`process`], [`worker`]), so that one that crashes or is killed is dropped and
//! the rest goes on. At the end the result is measured once more against no tuning at all.

pub mod check;
mod depth;
pub mod halving;
mod objective;
pub mod process;
pub mod report;
mod search;
pub mod space;
mod task;
pub mod worker;

#[cfg(test)]
mod tests;

pub use objective::Objective;
pub use search::{may_replace, tune};
pub use space::TuningStage;
pub use task::{Failure, RunFigures, Runner, Stop, Task, TuningEvent, TuningProgress, Work};
