//! Float weights: panels of sixteen rows, element after element, in the file's number format.

use std::ops::Range;

use crate::format::f16_to_f32;
use crate::panel::ROWS;

/// Number format of float weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "The variants are named after the formats in GGUF.")]
pub enum FloatFormat {
    F32,
    F16,
    Bf16,
}

/// All float formats.
pub const FLOATS: [FloatFormat; 3] = [FloatFormat::F32, FloatFormat::F16, FloatFormat::Bf16];

impl FloatFormat {
    /// Returns the format's number in GGUF files and in ggml (`enum ggml_type`).
    pub const fn ggml(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Bf16 => 30,
        }
    }

    /// Returns the size of an element, in bytes.
    pub const fn bytes(self) -> usize {
        if matches!(self, Self::F32) { 4 } else { 2 }
    }

    /// Returns the value of the element that starts at `bytes[0]`.
    #[inline(always)]
    pub fn value(self, bytes: &[u8]) -> f32 {
        let half = u16::from_le_bytes([bytes[0], bytes[1]]);
        match self {
            Self::F32 => f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
            Self::F16 => f16_to_f32(half),
            Self::Bf16 => f32::from_bits(u32::from(half) << 16),
        }
    }

    /// Returns the byte range of element `at` in row `row` of a panel.
    fn place(self, row: usize, at: usize) -> Range<usize> {
        let from = (at * ROWS + row) * self.bytes();
        from..from + self.bytes()
    }

    /// Packs up to [`ROWS`] rows of `k` elements, which are contiguous in `rows`.
    #[inline(always)]
    pub fn pack(self, k: usize, rows: &[u8], panel: &mut [u8]) {
        panel.fill(0);
        for (row, bytes) in rows.chunks_exact(k * self.bytes()).enumerate() {
            for (at, element) in bytes.chunks_exact(self.bytes()).enumerate() {
                panel[self.place(row, at)].copy_from_slice(element);
            }
        }
    }

    /// Writes row `row` of `panel` into `out` in the file's layout: the inverse of [`FloatFormat::pack`].
    pub fn unpack_row(self, panel: &[u8], row: usize, out: &mut [u8]) {
        for (at, element) in out.chunks_exact_mut(self.bytes()).enumerate() {
            element.copy_from_slice(&panel[self.place(row, at)]);
        }
    }

    /// Writes the values of row `row` of `panel` into `out`.
    #[inline(always)]
    pub fn get_row(self, panel: &[u8], row: usize, out: &mut [f32]) {
        for (at, value) in out.iter_mut().enumerate() {
            *value = self.value(&panel[self.place(row, at)]);
        }
    }
}
