//! Damaged and malicious model files.

mod fuzz;
mod refused;
mod trial;
