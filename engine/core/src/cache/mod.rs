//! The prompt cache on disk: the evaluated state of a prompt, for later runs.
//!
//! [`Store`] saves and finds files, and [`CacheKey`] identifies their content. `anneal run` generates text with
//! [`generate`]. See docs/src/run/prompt-cache.md.

pub mod checkpointed;
mod digest;
pub mod entry;
mod format;
mod key;
pub mod place;
mod program;
mod prompt;
mod salt;
mod store;
mod wanted;

pub use digest::Digest;
pub use entry::{Content, Unfit};
pub use key::{CacheKey, ModelDigest, UNSCOPED};
pub use prompt::{PromptCache, PromptCacheReport, generate};
pub use store::{BLOCK, DEFAULT_BOUND, Loaded, Saved, Store};
pub use wanted::PromptCacheRequest;
