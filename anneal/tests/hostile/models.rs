//! Damaged and malicious model files.

mod fuzz;
mod trial;
