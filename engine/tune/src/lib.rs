//! Measurements of a model on this machine, and the search for its fastest settings.
#![forbid(unsafe_code)]

pub mod bench;
pub mod roofline_cache;
pub mod tuner;
