//! The prompt cache on the disk: what a context held of a prompt, for the next start.
//!
//! [`Store`] keeps files and finds them again, [`CacheKey`] says what they are of, [`generate`] is what `anneal run` does with
//! them. See docs/src/run/prompt-cache.md.

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
