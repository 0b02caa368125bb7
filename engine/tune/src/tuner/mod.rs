//! Search for the fastest settings for a model on this machine, and the record of the result.
//!
//! The search runs stage by stage ([`space`]), and each stage changes one aspect of the best settings so far. A full
//! grid search would take days without finding more, because the phases and their limits are known. Each stage is a
//! contest ([`halving`]). Every candidate runs in a separate process ([`process`], [`worker`]), so that a candidate
//! that crashes or is killed is dropped and the others continue. At the end, the result is measured again, against the
//! untuned settings.

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
