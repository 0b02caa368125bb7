//! Identification of prompt cache files.

/// First bytes of every file.
pub const MAGIC: [u8; 8] = *b"annealKV";

/// Version of the file format.
pub const VERSION: u32 = 2;
