//! Commands of the program `anneal`.
//!
//! - [`main`] parses the command line, runs a command and returns the exit code.
//! - `commands` has one module for each command, `mcp` the tools of `anneal mcp`.
//! - `remote` is the client of a running server.
//! - `interrupt` handles ctrl-C and SIGTERM, `openmp` looks at the OpenMP runtime, `version` is the text of `--version`.
#![forbid(unsafe_code)]
// They panic when stderr is full or its reader gone; `writeln!` lets that be nobody's concern.
#![deny(clippy::print_stderr)]

mod commands;
mod entry;
mod interrupt;
mod mcp;
mod openmp;
mod remote;
mod version;

pub use entry::main;
