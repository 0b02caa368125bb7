//! Commands of the program `anneal`.
//!
//! - [`main`] parses the command line, runs a command and returns the exit code.
//! - `commands` has one module for each command, and `mcp` has the tools of `anneal mcp`.
//! - `remote` is the client of a running server.
//! - `interrupt` handles ctrl-C and SIGTERM, `openmp` detects the OpenMP runtime, and `version` is the text of
//!   `--version`.
#![forbid(unsafe_code)]
// The print macros panic if stderr cannot be written. With `writeln!`, the caller can ignore the error.
#![deny(clippy::print_stderr)]

mod commands;
mod entry;
mod interrupt;
mod mcp;
mod openmp;
mod remote;
mod version;

pub use entry::main;
