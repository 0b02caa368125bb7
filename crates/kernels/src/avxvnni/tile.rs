//! Tiles: sixteen rows times one to three columns, over a chunk of the row length.

use std::arch::x86_64::*;

use super::sums::{add, add_scaled};
use crate::avx2::direct::four;
use crate::avx2::expand::{SmallBlock, SuperBlock};
use crate::avx2::sums::Sums;
use crate::avx2::tile::{add_small_block, add_super_block};
use crate::format::{SMALL, SUPER};
use crate::kernel::Column;

/// Multiplies super-blocks, which have been expanded with [`super::sums::SCALE_SHIFT`]. `G` is the number of groups in
/// a sub-block.
///
/// # Safety
/// The columns must have activations for all blocks; `out` must be valid for `C * 16` floats, column after column. The
/// CPU must have the instruction set.
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
#[inline]
pub unsafe fn super_blocks<const F: usize, const C: usize, const G: usize>(
    blocks: &[SuperBlock],
    columns: &[Column; C],
    out: *mut f32,
) {
    for (at, block) in blocks.iter().enumerate() {
        let mut isums: Sums<C> = [[_mm256_setzero_si256(); 2]; C];
        // SAFETY: the columns have activations for the block, and the outputs belong to them.
        unsafe {
            let codes = columns.map(|column| column.codes.add(SUPER * at));
            add_scaled::<C, G>(&mut isums, block.codes.as_ptr(), &codes, block.scales.as_ptr());
            add_super_block::<F, C>(block, at, columns, &isums, out);
        }
    }
}

/// Multiplies blocks of 32 elements.
///
/// # Safety
/// Same as for [`super_blocks`].
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
#[inline]
pub unsafe fn small_blocks<const F: usize, const C: usize>(
    blocks: &[SmallBlock],
    columns: &[Column; C],
    out: *mut f32,
) {
    for (at, block) in blocks.iter().enumerate() {
        let mut isums: Sums<C> = [[_mm256_setzero_si256(); 2]; C];
        // SAFETY: the columns have activations and a sum for each block, and the outputs belong to them.
        unsafe {
            for (isum, column) in isums.iter_mut().zip(columns) {
                *isum = [four(column.sums.add(4 * at)); 2];
            }
            let codes = columns.map(|column| column.codes.add(SMALL * at));
            add::<C>(&mut isums, block.codes.as_ptr(), &codes);
            add_small_block::<F, C>(block, at, columns, &isums, out);
        }
    }
}
