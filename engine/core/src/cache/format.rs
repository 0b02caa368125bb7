//! The form of files of the prompt cache.

/// How a file begins.
pub const MAGIC: [u8; 8] = *b"annealKV";

/// The form of the file.
pub const VERSION: u32 = 2;
