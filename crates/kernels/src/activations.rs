//! Activations: one operand of a product, rounded to 8 bits in blocks.
//!
//! A block has the length of the weights' blocks. Its scale is `d = max(|x|) / 127`, and its codes are
//! `round(x * (127 / max(|x|)))`, half to even. A block with an infinity or a NaN gets the scale NaN, so that its
//! products are NaN, too. A block whose largest value is below 3.8e-37, where `127 / max(|x|)` overflows, is treated
//! as zero.

use crate::format::{Format, SMALL, SUPER};
use crate::instruction_set::InstructionSet;

/// Positions of the parts of an activation column, in bytes. Each part starts at a multiple of 32 bytes.
#[derive(Clone, Copy, Debug)]
pub struct ColumnLayout {
    /// True if codes have 16 bits ([`InstructionSet::is_wide`]). The codes of every four elements are then in the order
    /// 0, 2, 1, 3, because AVX2 widens the weights' bytes in this order.
    pub wide: bool,
    /// Position of the sums of codes: for super-blocks an i16 for each sub-block; otherwise an i32 for each block,
    /// times the negated offset ([`InstructionSet::offset`]). The codes come before the sums.
    pub sums: usize,
    /// Position of the scales: an f32 for each block.
    pub d: usize,
    /// Position of the totals, for formats with a float minimum: for each block, an f32 with the scale times the sum of
    /// codes.
    pub totals: usize,
    /// Size of a column, in bytes.
    pub bytes: usize,
}

/// True for formats with a float minimum for each small block.
pub const fn has_totals(format: Format) -> bool {
    matches!(format, Format::Q4_1 | Format::Q5_1)
}

impl ColumnLayout {
    /// Returns the layout of a column of `k` activations for weights of `format`.
    pub const fn of(set: InstructionSet, format: Format, k: usize) -> Self {
        let wide = set.is_wide(format);
        let sums = if wide { 2 * k } else { k };
        let sum_bytes = if format.has_super_blocks() { 2 * k / format.sub_len() } else { 4 * k / SMALL };
        let d = (sums + sum_bytes).next_multiple_of(32);
        let scale_bytes = (4 * k / format.block_len()).next_multiple_of(32);
        let totals = d + scale_bytes;
        let bytes = if has_totals(format) { totals + scale_bytes } else { totals };
        Self { wide, sums, d, totals, bytes: bytes.next_multiple_of(64) }
    }
}

/// Rounds the blocks `from..to` of the column `x` and writes them into `column`.
///
/// # Safety
/// `column` must be valid for writes of [`ColumnLayout::bytes`] bytes and aligned to 4 bytes. Other threads may write
/// other blocks of the same column at the same time.
#[inline(always)]
pub unsafe fn quantise(
    set: InstructionSet,
    format: Format,
    x: &[f32],
    from: usize,
    to: usize,
    column: *mut u8,
) {
    let layout = ColumnLayout::of(set, format, x.len());
    let len = format.block_len();
    for at in from..to {
        let x = &x[len * at..len * (at + 1)];
        // Positive floats have the same order as their bits, and infinities and NaNs have the largest bits.
        let largest = x.iter().fold(0u32, |largest, x| largest.max(x.to_bits() & 0x7fff_ffff));
        let largest_value = f32::from_bits(largest);
        let inverse = 127.0 / largest_value;
        let (d, inverse) = match largest {
            0x7f80_0000.. => (f32::NAN, 0.0),
            _ if !inverse.is_finite() => (0.0, 0.0),
            _ => (largest_value / 127.0, inverse),
        };
        let mut codes = [0i32; SUPER];
        if inverse != 0.0 {
            for (code, x) in codes.iter_mut().zip(x) {
                // SAFETY: the product is finite, and its magnitude is at most slightly above 127.
                *code = unsafe { (x * inverse).round_ties_even().to_int_unchecked() };
            }
        }
        let codes = &codes[..len];
        // SAFETY: the layout has room for the codes, the sums and the scales of each block.
        unsafe {
            if layout.wide {
                let out = column.cast::<i16>().add(len * at);
                for (group, four) in codes.chunks_exact(4).enumerate() {
                    for (place, from) in [0, 2, 1, 3].into_iter().enumerate() {
                        *out.add(4 * group + place) = four[from] as i16;
                    }
                }
            } else {
                let out = column.cast::<i8>().add(len * at);
                for (place, code) in codes.iter().enumerate() {
                    *out.add(place) = *code as i8;
                }
            }
            if format.has_super_blocks() {
                let subs = len / format.sub_len();
                let sums = column.add(layout.sums).cast::<i16>().add(subs * at);
                for (sub, codes) in codes.chunks_exact(format.sub_len()).enumerate() {
                    *sums.add(sub) = codes.iter().sum::<i32>() as i16;
                }
            } else {
                let sum = codes.iter().sum::<i32>();
                *column.add(layout.sums).cast::<i32>().add(at) = -set.offset(format) * sum;
                if has_totals(format) {
                    *column.add(layout.totals).cast::<f32>().add(at) = d * sum as f32;
                }
            }
            *column.add(layout.d).cast::<f32>().add(at) = d;
        }
    }
}
