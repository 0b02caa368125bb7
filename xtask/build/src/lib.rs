//! Carries out a plan: from sources to a build folder with a record.
//!
//! From the plan to artifacts:
//! - [`stages`]: stages of one build, from CMake to the correctness gate and the record
//! - [`builds`]: builds of profiles, for the commands that need them
//! - [`pgo`], [`bolt`]: builds that are optimised with a profile from training runs
//! - [`compare`]: interleaved comparison of builds, which decides whether a PGO or BOLT build becomes current
//! - [`audit`]: instruction sets in a program
//!
//! Supporting modules:
//! - [`workspace`], [`scratch`]: folders of a checkout, and scratch folders of running commands
//! - [`fs`], [`overwrite_guard`]: atomic replacement, digests, and protection of files that Anneal did not create
//! - [`process`]: external commands, with a log and interruption by ctrl-C
//! - [`program`], [`shipping`], [`storing`]: programs of the workspace that are compiled on demand
//! - [`profile`], [`described`], [`workload`]: readers of profile, machine and workload files
//! - [`named_cpu`]: instruction sets of a CPU that a profile names, as reported by the compilers
//! - [`tools`], [`setup`], [`openblas`], [`models`], [`published_models`]: prerequisites of a build, which are found,
//!   installed or made
//! - [`ui`], [`entry`]: progress, tables and errors; start and exit of a program
//! - [`forecast`]: estimate of the remaining time of a stage

pub mod audit;
pub mod bolt;
pub mod builds;
pub mod compare;
pub mod described;
pub mod entry;
// The table of the compilers' macros, which the build script of the CPU guard uses too.
#[allow(dead_code)]
#[path = "../../../vendor/llama-link/build/features.rs"]
mod features;
pub mod forecast;
pub mod fs;
mod full_disk;
pub mod models;
pub mod named_cpu;
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
