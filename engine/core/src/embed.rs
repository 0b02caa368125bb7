//! Embeddings: vectors that represent texts, to compare them.

mod evaluate;
mod pooling;

pub use evaluate::{BATCH, Evaluator, longest};
pub use pooling::Pooling;
