//! Constants of the file format.

/// First four bytes of a GGUF file.
pub const MAGIC: [u8; 4] = *b"GGUF";
/// Version of the format that is written; versions 2 and 3 can be read.
pub const VERSION: u32 = 3;
/// Alignment of tensor data in bytes, unless `general.alignment` sets another one.
pub const DEFAULT_ALIGNMENT: u64 = 32;
