//! The exact rule for a product.
//!
//! The sum over a block is an integer and exact. A block then adds `d_w * d_a * sum` to the output with one fused
//! multiply-add, and its minima with another, block after block. Neither the number of columns nor the number of
//! threads changes the order. Float weights have no blocks: each product is added with one fused multiply-add, element
//! after element.

use crate::activations::{ColumnLayout, has_totals};
use crate::format::{Format, f16_to_f32};
use crate::instruction_set::InstructionSet;
use crate::panel::{BlockParts, unpack_block};

/// Returns the product of row `row` of `panel` with the column of `k` activations at `column`.
///
/// # Safety
/// `column` must have been filled by [`crate::activations::quantise`] for `set`, `format` and `k`.
pub unsafe fn dot(
    set: InstructionSet,
    format: Format,
    panel: &[u8],
    row: usize,
    k: usize,
    column: *const u8,
) -> f32 {
    let layout = ColumnLayout::of(set, format, k);
    let len = format.block_len();
    let mut acc = 0f32;
    for (at, packed) in panel.chunks_exact(BlockParts::of(format).bytes).enumerate() {
        let block = unpack_block(format, packed, row);
        let code = |place: usize| {
            let place = len * at + place;
            // SAFETY: the caller filled `k` codes.
            unsafe {
                if layout.wide {
                    let swapped = place / 4 * 4 + [0, 2, 1, 3][place % 4];
                    i64::from(*column.cast::<i16>().add(swapped))
                } else {
                    i64::from(*column.cast::<i8>().add(place))
                }
            }
        };
        // SAFETY: there is a scale for each block, and a total if the format has totals.
        let (d, total) = unsafe {
            let d = *column.add(layout.d).cast::<f32>().add(at);
            (d, if has_totals(format) { *column.add(layout.totals).cast::<f32>().add(at) } else { 0.0 })
        };
        let (mut sum, mut minima) = (0i64, 0i64);
        for place in 0..len {
            let sub = place / format.sub_len();
            let value = i64::from(format.value(block.codes[place]) - format.offset());
            let scale = if format.has_super_blocks() { i64::from(block.scales[sub]) } else { 1 };
            sum += scale * value * code(place);
            minima += i64::from(block.mins[sub]) * code(place);
        }
        let scale = format.scale(block.d);
        acc = (scale * d).mul_add(sum as i32 as f32, acc);
        if has_totals(format) {
            acc = f16_to_f32(block.m).mul_add(total, acc);
        } else if format.has_mins() {
            acc = (-(f16_to_f32(block.m) * d)).mul_add(minima as i32 as f32, acc);
        }
    }
    acc
}

/// Returns the product of a row of float weights with a column of activations.
pub fn dot_floats(weights: &[f32], column: &[f32]) -> f32 {
    weights.iter().zip(column).fold(0.0, |acc, (weight, x)| weight.mul_add(*x, acc))
}
