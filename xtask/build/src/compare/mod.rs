//! Measuring on machines that are shared and noisy: only ratios of runs that stand side by side count, with an
//! interval.

pub mod candidate;
pub mod comparison;
pub mod contest;
mod ledger;
pub mod once;
mod phase;
mod provenance;
mod shape;

pub use candidate::CandidateBuild;
pub use comparison::Comparison;
pub use contest::Contest;
pub use measure::{Ratio, median, ratio};
pub use once::{RunRequest, measure as measure_once};
pub use phase::{Phase, Quantity};
pub use provenance::Provenance;
pub use shape::RunShape;
