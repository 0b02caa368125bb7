//! Carries a plan out: stages, profiles, BOLT, the gate, the audit and the record; and what commands share.

pub mod audit;
pub mod bolt;
pub mod builds;
pub mod compare;
pub mod described;
pub mod entry;
pub mod fs;
pub mod models;
pub mod openblas;
pub mod ours;
pub mod pgo;
pub mod process;
pub mod profile;
pub mod program;
pub mod scratch;
pub mod setup;
pub mod shipping;
pub mod stages;
pub mod storing;
pub mod tools;
pub mod ui;
pub mod workload;
pub mod workspace;

pub use builds::{make, make_prefix, make_with};
