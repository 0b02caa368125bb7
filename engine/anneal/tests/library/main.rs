//! Tests of the engine's crates, called in this process.

#[path = "../common/mod.rs"]
mod common;
mod grammars;
mod library;
mod sampling;
mod seeds;
mod sessions;
mod synthetic;
mod templates;
mod variant;
mod windows;
