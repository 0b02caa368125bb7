//! Measures: compares builds and servers, finds the fastest build, validates, recommends and reports.

pub mod commands;
mod gpu_check;
mod optimize;
mod recommend;
mod report;
mod serving;
mod validate;
