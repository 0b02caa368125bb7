//! All settings with their values and sources. Precedence, highest first: flag, configuration file, environment,
//! tuning record, build info, live host, default.

mod check;
mod context;
mod explain;
mod options;
mod profile;
mod resolve;
mod resolved;
mod source;
#[cfg(test)]
mod tests;
mod threads;
mod tuned;

pub use crate::option::{Bare, DefaultValue, Flag, Form, Group, Key, OptionSpec, Slot, Value, merge};
pub use check::check;
pub use context::context_warning;
pub use explain::Explained;
pub use gguf::memory::CTX_STEP;
pub use llama::options::MAX_CTX;
pub use options::{BATCH, OPTIONS, POLL, Requested, THREADS};
pub use resolved::{DEFAULT_BLAS_THREADS, DEFAULT_CTX, Settings};
pub use source::{Setting, Source};
