//! The engine of Anneal: runs GGUF models with llama.cpp in its own process.
//!
//! [`live::Live`] looks at the machine and the build's record, [`settings::Settings`] resolves every choice
//! with its source, [`model`] opens models and makes contexts, [`generate`](mod@generate) and [`bench`] use
//! them. All unsafe code is in [`ffi`].
#![deny(unsafe_code)]

pub mod allocator;
pub mod bench;
pub mod cache;
pub mod chat;
pub mod error;
pub mod eval;
#[allow(unsafe_code)]
pub mod ffi;
pub mod generate;
pub mod imatrix;
pub mod live;
pub mod logits;
pub mod model;
pub mod openmp;
pub mod options;
pub mod quantize;
pub mod roof;
pub mod sampling;
pub mod serve;
pub mod settings;
pub mod signals;
pub mod size;
pub mod speculative;
pub mod split;
pub mod stream_utf8;
pub mod threads;
pub mod tune;
pub mod tuning;

pub use error::{Error, Result};
