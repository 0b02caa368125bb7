//! Random weights for large models, generated in their storage format. The weights depend on the seed only.
//!
//! The crate is separate because, unlike the rest of model synthesis, it must be compiled with optimisation.

mod half;
mod random;
mod rows;

pub use half::f16_bits;
pub use random::{Xoshiro, normal_quantile};
pub use rows::{HalfTable, draw_normals, draw_signs};
