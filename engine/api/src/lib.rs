//! Anneal's engine: runs GGUF models with llama.cpp inside your process.
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
//! | type | purpose |
//! | --- | --- |
//! | [`Model`] | a loaded model: tokenises text and creates the other types. [`Model::estimate`] estimates its memory |
//! | [`Session`] | a sequence of tokens and its KV cache: text can be added, generated and removed |
//! | [`Sampler`] | chooses tokens according to [`SamplingOptions`]: llama.cpp's samplers, grammars, JSON schemas |
//! | [`Tokens`], [`TokenStream`] | generated tokens: a blocking iterator, and an async stream for any executor |
//! | [`Embedder`] | embeddings of texts |
//! | [`ChatTemplate`] | renders messages as a prompt |
//! | [`Error`] | errors, each with its remedy |
//!
//! # Threads
//!
//! [`Model`], [`Canceller`], [`ChatTemplate`] and [`Error`] are `Send` and `Sync`, so threads can share them.
//! [`Session`], [`Sampler`] and [`Embedder`] are `Send`; methods that change them take `&mut self`, so any thread can
//! use them, but never two threads at once. Sessions that run at the same time share the cores, but each has its own
//! threads. Set [`Options::decode_threads`] so that the sessions together have no more threads than the machine has
//! cores.
//!
//! # Panics, exceptions, the process
//!
//! This crate converts panics and llama.cpp's C++ exceptions to [`Error`]. A failed assertion in llama.cpp still ends
//! the process, with a message on standard error and exit code 1. Input that could fail an assertion (a damaged file,
//! invalid tokens, too many tokens) is refused before llama.cpp sees it. With [`Options::trial_program`], a child
//! process loads each unknown model first. If the connection to a worker ([`Options::workers`]) is lost during a
//! computation, the process ends in the same way.
//!
//! Loading the first model installs handlers for failed assertions and lost connections, and for SIGBUS (raised when
//! a mapped file is truncated). Otherwise, the crate handles no signals, prints nothing and never exits the process.
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
