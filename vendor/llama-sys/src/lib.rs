//! llama.cpp for Rust: its C API and the shim's as bindgen declares them.
//!
//! Raw: every function is `unsafe`, and the `llama_*` ones can throw through it. The `engine` crate wraps
//! what it uses; it calls the `anneal_*` wrappers of `csrc/shim.h` for everything that can throw or abort.
//!
//! Only declared: what they name is linked by the crate `llama-link`, on which a program depends beside.

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

pub use bindings::*;
