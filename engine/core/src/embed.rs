//! Embeddings: vectors that represent texts, so that texts can be compared.

mod evaluate;
pub(crate) mod pooling;

pub use evaluate::{BATCH, Evaluator, Reduction, longest, longest_pair};
pub use pooling::Pooling;
