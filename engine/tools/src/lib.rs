//! Creation and evaluation of model files: quantisation, importance matrices, perplexity and divergence.
#![forbid(unsafe_code)]

pub mod eval;
pub mod imatrix;
pub mod quantize;
