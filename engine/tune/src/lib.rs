//! Measures a model on this machine, and finds the settings that it runs fastest with.
#![forbid(unsafe_code)]

pub mod bench;
pub mod roofline_cache;
pub mod tuner;
