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
#![forbid(unsafe_code)]

mod caught;
mod embedder;
mod estimate;
mod model;
mod sampler;
mod session;
mod stream;
mod template;
#[cfg(test)]
mod tests;
mod tokens;

pub use build_info::Bytes;
pub use chat::{Inputs, Json, Message};
pub use embedder::Embedder;
pub use engine_core::generate::Stop;
pub use engine_core::settings::Requested as Options;
pub use estimate::Estimate;
pub use llama::Token;
pub use llama::error::{self, Error, Result};
pub use llama::offload::{CpuMoe, Devices, GpuLayers, TensorSplit, Worker, Workers};
pub use llama::options::{RequireGpu, RopeScaling, SplitMode};
pub use llama::rope::Rope;
pub use llama::variant::{Adapter, Variant};
pub use model::Model;
pub use sampler::Sampler;
pub use sampling::{Bias, Constraint, SamplingOptions};
pub use session::{Canceller, Session};
pub use stream::{Finished, TokenStream};
pub use template::ChatTemplate;
pub use tokens::{Piece, Tokens};
