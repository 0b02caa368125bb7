//! Damaged and malicious model files.

mod refused;
