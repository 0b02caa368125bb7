//! The library: what other programs build on. Everything here is re-exported by the crate.
//!
//! No panic leaves a function of this module: one becomes [`Error::Internal`](crate::Error::Internal). llama.cpp's C++
//! exceptions become errors in the shim. What ends the process all the same is an assertion that fails inside
//! llama.cpp, which has no way back; the checks here and of the file are there so that none does.

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

pub use embedder::Embedder;
pub use estimate::Estimate;
pub use model::Model;
pub use sampler::Sampler;
pub use session::{Canceller, Session};
pub use stream::{Finished, TokenStream};
pub use template::ChatTemplate;
pub use tokens::{Piece, Tokens};
