//! Embeddings: vectors that represent texts, for comparing them.
//!
//! Embeddings have their own thread, queue and context. The context exists from the first request until none has
//! arrived for a while. Batches of embeddings and of the scheduler use the same threads and alternate
//! (`engine_core::core_lock`).

pub mod embedder;
mod request;
mod worker;

pub use embedder::{Embedder, EmbeddingJob, EmbeddingRefusal};
pub use request::{EmbeddingRequest, Encoding, TEXTS, rendered};
pub use worker::{EmbedderStart, EmbedderThread, start};
