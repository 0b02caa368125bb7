//! Carries a plan out: from sources to a build folder with a record.
//!
//! From the plan to artifacts:
//! - [`stages`]: the stages of one build, from CMake to the correctness gate and the record
//! - [`builds`]: builds of profiles, as commands ask for them
//! - [`pgo`], [`bolt`]: builds that are optimised by a profile of their own runs
//! - [`compare`]: builds side by side, by which PGO and BOLT are judged
//! - [`audit`]: the instruction sets in a program
//!
//! What they stand on:
//! - [`workspace`], [`scratch`]: folders of a checkout, and folders of commands that are at work
//! - [`fs`], [`ours`]: files that are replaced, digested, and overwritten only if Anneal made them
//! - [`process`]: external commands, which are logged and stopped by ctrl-C
//! - [`program`], [`shipping`], [`storing`]: programs of the workspace that are compiled when they are wanted
//! - [`profile`], [`described`], [`workload`]: files of profiles, machines and workloads, read
//! - [`tools`], [`setup`], [`openblas`], [`models`], [`published_models`]: what a build needs, found, installed or made
//! - [`ui`], [`entry`]: progress, tables and errors; the beginning and the end of a program
//! - [`forecast`]: how long the rest of a stage takes

pub mod audit;
pub mod bolt;
pub mod builds;
pub mod compare;
pub mod described;
pub mod entry;
pub mod forecast;
pub mod fs;
pub mod models;
pub mod openblas;
pub mod overwrite_guard;
pub mod pgo;
pub mod process;
pub mod profile;
pub mod program;
pub mod published_models;
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
