//! Every setting with its value and where it came from. Precedence: flag, environment, tuning record, build info,
//! live host, default.

mod check;
mod context;
mod explain;
mod profile;
mod requested;
mod resolve;
mod resolved;
mod source;
#[cfg(test)]
mod tests;
mod threads;
mod tuned;

pub use check::check;
pub use context::context_warning;
pub use explain::Explained;
pub use gguf::memory::CTX_STEP;
pub use llama::options::MAX_CTX;
pub use requested::Requested;
pub use resolved::{DEFAULT_BLAS_THREADS, DEFAULT_CTX, DEFAULT_SPLIT_FROM, Settings};
pub use source::{Setting, Source};
