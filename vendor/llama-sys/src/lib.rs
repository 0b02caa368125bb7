//! llama.cpp for Rust: its C API and the shim's as bindgen declares them, the link step, the CPU guard.
//!
//! Raw: every function is `unsafe`, and the `llama_*` ones can throw through it. The `engine` crate wraps
//! what it uses; it calls the `anneal_*` wrappers of `csrc/shim.h` for everything that can throw or abort.

#[allow(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    clippy::all,
    clippy::undocumented_unsafe_blocks
)]
mod bindings {
    include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
}

pub mod guard;

pub use bindings::*;
