//! Measuring on machines that are shared and noisy: only ratios of runs that stand side by side count, with an
//! interval.

mod stats;

pub use stats::{Ratio, median, ratio};
