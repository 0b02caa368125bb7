//! Measurements of a model on this machine, and the search for the settings with which it runs fastest.
#![forbid(unsafe_code)]

pub mod bench;
pub mod roofline_cache;
pub mod tuner;
