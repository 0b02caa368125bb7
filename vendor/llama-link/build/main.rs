//! Links llama.cpp, and compiles the exception-safe shim and the CPU guard.
//!
//! The libraries come from the prefix in `ANNEAL_LLAMA_PREFIX`. If the variable is not set (in a plain `cargo build`
//! or an editor), CMake builds a default tree once.

mod compilers;
mod default_tree;
mod features;
mod fingerprint;
mod guard;
mod link;
mod shim;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use link::Link;

/// Folder of the headers that declare the C++ functions to Rust.
const HEADERS: &str = "../llama-sys/csrc";

fn main() -> Result<()> {
    println!("cargo::rerun-if-changed=build");
    println!("cargo::rerun-if-changed={HEADERS}");
    println!("cargo::rerun-if-env-changed=ANNEAL_LLAMA_PREFIX");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").context("cargo sets OUT_DIR")?);
    let prefix = match std::env::var_os("ANNEAL_LLAMA_PREFIX") {
        Some(prefix) => PathBuf::from(prefix),
        None => default_tree::build(&out)?,
    };
    build(&prefix, &out).with_context(|| format!("cannot use llama.cpp in {}", prefix.display()))
}

fn build(prefix: &Path, out: &Path) -> Result<()> {
    let link = Link::read(prefix)?;
    guard::build(&link, out)?;
    // The shim must precede llama.cpp's libraries, because the shim uses them.
    shim::build(&link, out)?;
    link.emit(out)
}
