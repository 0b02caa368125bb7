//! Commands of `cargo xtask` that only measure builds. The commands are in a separate program, which is compiled on
//! first use.
//!
//! - [`commands`]: the command line, one file per command
//! - `optimize`: finds the fastest build for a machine
//! - `serving`: compares servers, and soak-tests one under load
//! - `validate`: decides whether a build or a setting may replace another
//! - `gpu_check`: checks a build on a GPU, from one archive
//! - `recommend`: recommends a build, settings and a quantisation for a model on a machine
//! - `upgrade`: replaces llama.cpp with another version, and finds the version that caused a change
//! - `report`: writes one page with all measurements

pub mod commands;
mod gpu_check;
mod optimize;
mod recommend;
mod report;
mod serving;
mod upgrade;
mod validate;
