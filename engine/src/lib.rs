//! Anneal's engine: runs GGUF models with llama.cpp in its own process.
//!
//! ```
//! # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/common/tiny.rs"));
//! # fn main() -> engine::Result<()> {
//! # let file = tiny();
//! # let path = file.path();
//! use engine::{Model, Options, Sampler, SamplingOptions};
//!
//! let model = Model::load(path, &Options::default())?;
//! let mut session = model.session()?;
//! session.push("Once upon a time")?;
//!
//! let mut sampler = Sampler::new(&model, &SamplingOptions { seed: Some(7), ..SamplingOptions::default() })?;
//! for piece in session.generate(&mut sampler, 16) {
//!     print!("{}", piece?.text);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! | | |
//! | --- | --- |
//! | [`Model`] | a loaded model: tokenizes, makes the others. [`Model::estimate`] says first what it takes |
//! | [`Session`] | a sequence of tokens with its K and V: text is added, generated, taken back |
//! | [`Sampler`] | chooses tokens by [`SamplingOptions`]: llama.cpp's samplers, grammars, JSON schemas |
//! | [`Tokens`], [`TokenStream`] | generated tokens: a blocking iterator, and an async stream for any executor |
//! | [`Embedder`] | embeddings of texts |
//! | [`ChatTemplate`] | messages in, a prompt out |
//! | [`Error`] | all that can go wrong, with what to do about it |
//!
//! # Threads
//!
//! [`Model`], [`Canceller`], [`ChatTemplate`] and [`Error`] are `Send` and `Sync`: share them. [`Session`], [`Sampler`] and
//! [`Embedder`] are `Send`: what changes them takes `&mut`, one thread at a time, whichever it is. Sessions that run at
//! the same time each have threads of their own and share the cores: set [`Options::decode_threads`] so that together
//! they are no more than the cores.
//!
//! # Panics, exceptions, the process
//!
//! No panic leaves a function of this crate, and no C++ exception llama.cpp; both become an [`Error`]. llama.cpp can still
//! end the process by an assertion: its message goes to standard error, and the exit code is 1. What may lead there (a
//! damaged file, numbers that are no tokens, more tokens than fit) is refused before llama.cpp sees it, and with
//! [`Options::trial_program`] a child process loads each unknown model first. A worker
//! ([`Options::workers`]) that is lost while it computes ends the process in the same way. Loading the first
//! model installs handlers for that, and for SIGBUS (a mapped file that became shorter); nothing else of the process is
//! touched: no other signal, no output, no exit.
//!
//! # What is not here
//!
//! Modules that the documentation does not show are what the program `anneal` is made of; they change without notice.
#![deny(unsafe_code)]

// What the declarations in llama-sys name.
#[cfg(feature = "link")]
extern crate llama_link as _;

#[doc(hidden)]
pub mod allocator;
mod api;
#[doc(hidden)]
pub mod asked_threads;
#[doc(hidden)]
pub mod bench;
#[doc(hidden)]
pub mod cache;
#[doc(hidden)]
pub mod chat;
mod child_process;
#[doc(hidden)]
pub mod cli;
pub mod error;
#[doc(hidden)]
pub mod eval;
#[doc(hidden)]
#[allow(unsafe_code)]
pub mod ffi;
#[doc(hidden)]
pub mod fit;
#[doc(hidden)]
pub mod generate;
#[doc(hidden)]
pub mod gpu;
#[doc(hidden)]
pub mod hub;
#[doc(hidden)]
pub mod imatrix;
#[doc(hidden)]
pub mod kernels;
#[doc(hidden)]
pub mod live;
#[doc(hidden)]
pub mod log;
#[doc(hidden)]
pub mod logits;
#[doc(hidden)]
pub mod mcp;
#[doc(hidden)]
pub mod model;
#[doc(hidden)]
pub mod offload;
#[doc(hidden)]
pub mod openmp;
#[doc(hidden)]
pub mod options;
#[doc(hidden)]
pub mod placement;
#[doc(hidden)]
pub mod quantize;
#[doc(hidden)]
pub mod remote;
#[doc(hidden)]
pub mod roof;
#[doc(hidden)]
pub mod rope;
#[doc(hidden)]
pub mod sampling;
#[doc(hidden)]
pub mod serve;
#[doc(hidden)]
pub mod settings;
#[doc(hidden)]
pub mod signals;
#[doc(hidden)]
pub mod size;
#[doc(hidden)]
pub mod speculative;
#[doc(hidden)]
pub mod split;
#[doc(hidden)]
pub mod stream_utf8;
pub(crate) mod terminal;
#[doc(hidden)]
pub mod threads;
#[doc(hidden)]
pub mod trial;
#[doc(hidden)]
pub mod tune;
#[doc(hidden)]
pub mod tuning;
#[doc(hidden)]
pub mod variant;

pub use api::{
    Canceller, ChatTemplate, Embedder, Estimate, Finished, Model, Piece, Sampler, Session, TokenStream,
    Tokens,
};
pub use build_info::Bytes;
pub use chat::{Inputs, Json, Message};
pub use error::{Error, Result};
pub use ffi::Token;
pub use generate::Stop;
pub use offload::{CpuMoe, Devices, GpuLayers, TensorSplit, Worker, Workers};
pub use options::{RequireGpu, RopeScaling, SplitMode};
pub use rope::Rope;
pub use sampling::{Bias, Constraint, SamplingOptions};
pub use settings::Requested as Options;
pub use variant::{Adapter, Variant};
