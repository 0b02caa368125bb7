//! Constants of the file format.

/// First four bytes of a GGUF file.
pub const MAGIC: [u8; 4] = *b"GGUF";
/// Version of the format that is written; versions 2 and 3 can be read.
pub const VERSION: u32 = 3;
/// Default alignment of tensor data in bytes, which `general.alignment` overrides.
pub const DEFAULT_ALIGNMENT: u64 = 32;
