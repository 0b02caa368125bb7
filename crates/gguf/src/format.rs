//! Constants of the file format.

/// The first four bytes of a GGUF file.
pub const MAGIC: [u8; 4] = *b"GGUF";
/// The format version that is written; 2 and 3 are read.
pub const VERSION: u32 = 3;
/// Alignment of tensor data where `general.alignment` does not say otherwise.
pub const DEFAULT_ALIGNMENT: u64 = 32;
