//! Caches of keys and values, and their masks.

use std::ops::Range;

use crate::format::{Format, SMALL};

/// Bits of minus infinity in F16, which a mask contains for a cell that a token must not see.
pub const MASKED: u16 = 0xfc00;

/// Number format of cached keys or values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "The variants are named after the formats in ggml.")]
pub enum CacheFormat {
    F32,
    F16,
    Bf16,
    Q4_0,
    Q8_0,
}

impl CacheFormat {
    /// Returns the format with the number `id` of `enum ggml_type`, or `None` if no kernel reads it.
    pub fn of_ggml(id: u32) -> Option<Self> {
        match id {
            0 => Some(Self::F32),
            1 => Some(Self::F16),
            2 => Some(Self::Q4_0),
            8 => Some(Self::Q8_0),
            30 => Some(Self::Bf16),
            _ => None,
        }
    }

    /// Returns the size of `elements` elements in bytes. `elements` must be a whole number of blocks.
    pub fn bytes(self, elements: usize) -> usize {
        match self {
            Self::F32 => 4 * elements,
            Self::F16 | Self::Bf16 => 2 * elements,
            Self::Q4_0 => elements / SMALL * Format::Q4_0.block_bytes(),
            Self::Q8_0 => elements / SMALL * Format::Q8_0.block_bytes(),
        }
    }

    /// Returns the number of elements in a block. The length of a head must be a multiple of this number.
    pub fn block(self) -> i64 {
        if matches!(self, Self::Q4_0 | Self::Q8_0) { 32 } else { 8 }
    }
}

/// Parts of rows of a cache.
pub struct CacheRows<'a> {
    /// Format of the elements.
    pub format: CacheFormat,
    /// Address of the row of cell 0.
    pub base: *const u8,
    /// Number of bytes from the row of a cell to the row of the next cell.
    pub stride: usize,
    /// Numbers of the rows' cells.
    pub cells: &'a [u32],
    /// Range of elements of each row. It begins and ends at a block of the format.
    pub part: Range<usize>,
}
