//! Random weights by the gigabyte, in what they are stored as. What is drawn depends on the seed alone.
//!
//! A crate of its own, because it is the part of synthesising a model that has to be compiled with optimisation.

mod half;
mod random;
mod rows;

pub use half::f16_bits;
pub use random::{Xoshiro, normal_quantile};
pub use rows::{HalfTable, draw_normals, draw_signs};
