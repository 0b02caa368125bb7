//! Embeddings: what the model makes of a text, as numbers to compare texts by.

mod evaluate;
mod pooling;

pub use evaluate::{BATCH, Evaluator, longest};
pub use pooling::Pooling;
