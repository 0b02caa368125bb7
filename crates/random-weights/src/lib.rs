//! Random weights for large models, generated in their storage format. The weights depend only on the seed.
//!
//! The crate is separate because, unlike the rest of model synthesis, it must always be optimised.

mod half;
mod random;
mod rows;

pub use half::f16_bits;
pub use random::{Xoshiro, normal_quantile};
pub use rows::{HalfTable, draw_normals, draw_signs};
