//! Measurements on shared and noisy machines. Only ratios of interleaved runs count, and each ratio has an interval.
//! xtask uses this crate to compare builds, and the engine uses it to compare settings.

pub mod anchor;
pub mod cards;
pub mod conditions;
pub mod cpu_time;
pub mod disturbance;
pub mod gpu;
pub mod halving;
pub mod objective;
pub mod race;
pub mod referee;
pub mod schedule;
pub mod stats;
pub mod stopping;
pub mod thinned;
pub mod trace;
pub mod usage;

pub use anchor::{Anchor, Judgement, floor};
pub use cpu_time::CpuTime;
pub use disturbance::{Round, Watch};
pub use gpu::{GpuUse, GpuWatch};
pub use objective::Objective;
pub use race::Race;
pub use referee::{Call, Referee};
pub use stats::{FEWEST_PAIRS, Ratio, median, quantile, ratio};
pub use stopping::{Rule, Stop};
pub use trace::{Trace, TraceWatch};
pub use usage::{Usage, UsageWatch};
