//! Measurements on shared, noisy machines. Only ratios of interleaved runs count, each with an interval.

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
