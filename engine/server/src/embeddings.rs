//! Embeddings: vectors that represent texts, so that texts can be compared.
//!
//! Embeddings have a separate thread, queue and context. The context is created for the first request, and freed when
//! no request has arrived for some time. Batches of embeddings and batches of the scheduler use the same threads and
//! alternate (`engine_core::core_lock`).

pub mod embedder;
mod request;
mod rerank;
mod worker;

pub use embedder::{Embedder, EmbeddingJob, EmbeddingRefusal};
pub use request::{EmbeddingRequest, Encoding, TEXTS, rendered};
pub use rerank::RerankRequest;
pub use worker::{EmbedderStart, EmbedderThread, start};
