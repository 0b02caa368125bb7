//! Measures builds: the commands of `cargo xtask` that only measure, in a program that is compiled when one is first used.
//!
//! - [`commands`]: the command line, one file per command
//! - `optimize`: finds the fastest build of a machine
//! - `serving`: servers against each other, and one of them under load for long
//! - `validate`: says if a build or a setting may replace another
//! - `gpu_check`: checks what a GPU does with a build, from one archive
//! - `recommend`: the build, settings and quantisation that suit a model on a machine
//! - `report`: one page of all measurements

pub mod commands;
mod gpu_check;
mod optimize;
mod recommend;
mod report;
mod serving;
mod validate;
