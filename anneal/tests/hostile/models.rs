//! Damaged and malicious model files.
