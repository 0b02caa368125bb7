//! Embeddings: what the model makes of a text, as numbers to compare texts by.
//!
//! They have a thread, a queue and a context of their own, the last from the first request until nobody has asked for a
//! while. Its batches and the scheduler's take turns (`engine_core::core_lock`), with the same threads.

pub mod embedder;
mod request;
mod worker;

pub use embedder::{Embedder, EmbeddingJob, EmbeddingRefusal};
pub use request::{EmbeddingRequest, Encoding, TEXTS, rendered};
pub use worker::{EmbedderStart, EmbedderThread, start};
