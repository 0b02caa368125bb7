//! Measuring on machines that are shared and noisy: only ratios of runs that stand side by side count, with an
//! interval. The orchestrator compares builds with it, the engine settings.

pub mod disturbance;
pub mod schedule;
pub mod stats;

pub use disturbance::{Round, Watch};
pub use stats::{FEWEST_PAIRS, Ratio, median, ratio};
