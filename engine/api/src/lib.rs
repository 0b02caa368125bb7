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
//! | [`Model`] | a loaded model: tokenizes and makes the other types. [`Model::estimate`] estimates its memory |
//! | [`Session`] | a sequence of tokens with its K and V: text can be added, generated and removed |
//! | [`Sampler`] | chooses tokens by [`SamplingOptions`]: llama.cpp's samplers, grammars, JSON schemas |
//! | [`Tokens`], [`TokenStream`] | generated tokens: a blocking iterator, and an async stream for any executor |
//! | [`Embedder`] | embeddings of texts |
//! | [`ChatTemplate`] | renders messages as a prompt |
//! | [`Error`] | every error, with its remedy |
//!
//! # Threads
//!
//! [`Model`], [`Canceller`], [`ChatTemplate`] and [`Error`] are `Send` and `Sync`, so threads can share them.
//! [`Session`], [`Sampler`] and [`Embedder`] are `Send`; methods that change them take `&mut`, so any thread can use
//! them, but only one thread at the same time. Sessions that run at the same time share the cores, but each has its
//! own threads. Set [`Options::decode_threads`] so that all of them together have no more threads than there are
//! cores.
//!
//! # Panics, exceptions, the process
//!
//! No panic leaves a function of this crate, and no C++ exception leaves llama.cpp: both become an [`Error`]. An
//! assertion of llama.cpp can still end the process; its message goes to standard error, and the exit code is 1.
//! Input that may fail an assertion (a damaged file, numbers that are not tokens, more tokens than fit) is refused
//! before llama.cpp sees it. With [`Options::trial_program`], a child process loads each unknown model first. If the
//! connection to a worker ([`Options::workers`]) is lost during a computation, the process ends in the same way.
//!
//! Loading the first model installs handlers for such endings, and for SIGBUS (a mapped file that became shorter).
//! Nothing else in the process is changed: no other signal, no output, no exit.
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
