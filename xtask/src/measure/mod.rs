//! Measuring on machines that are shared and noisy: only ratios of runs that stand side by side count, with an
//! interval.

pub mod candidate;
pub mod comparison;
pub mod contest;
mod disturbance;
mod ledger;
mod once;
mod phase;
mod provenance;
mod schedule;
mod stats;

pub use candidate::Candidate;
pub use comparison::Comparison;
pub use contest::{Contest, Shape};
pub use phase::Phase;
pub use provenance::Provenance;
pub use stats::{Ratio, median, ratio};
