//! Tiles: sixteen rows times one to three columns, over a chunk of the row length.

use std::arch::x86_64::*;

use super::expand::{SmallBlock, SuperBlock, WideSmallBlock, WideSuperBlock};
use super::sums::{Sums, narrow, rolled, wide};
use crate::activations::has_totals;
use crate::format::{FORMATS, SMALL, SUPER};
use crate::kernel::Column;
use crate::panel::{GROUP, ROWS};

/// Adds `a * b` to the eight outputs at `out`.
///
/// # Safety
/// `out` must be valid for reads and writes of eight floats.
#[target_feature(enable = "avx2,fma")]
#[inline]
pub unsafe fn accumulate(out: *mut f32, a: __m256, b: __m256) {
    // SAFETY: the caller's contract.
    unsafe { _mm256_storeu_ps(out, _mm256_fmadd_ps(a, b, _mm256_loadu_ps(out))) };
}

/// Returns the sums of one sub-block, each multiplied by its row's integer scale.
macro_rules! scaled {
    ($isums:ident, $sums:expr, $scales:expr) => {
        let scales = $scales.as_ptr().cast::<__m256i>();
        for (isum, sum) in $isums.iter_mut().zip(&$sums) {
            for half in 0..2 {
                // SAFETY: the scales have 64 aligned bytes.
                let scale = unsafe { _mm256_load_si256(scales.add(half)) };
                isum[half] = _mm256_add_epi32(isum[half], _mm256_madd_epi16(sum[half], scale));
            }
        }
    };
}

/// Multiplies super-blocks. `G` is the number of groups whose sums fit 16 bits.
///
/// # Safety
/// The columns must have activations for all blocks; `out` must be valid for `C * 16` floats, column after column.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub unsafe fn super_blocks<const F: usize, const C: usize, const G: usize>(
    blocks: &[SuperBlock],
    columns: &[Column; C],
    out: *mut f32,
) {
    let format = const { FORMATS[F] };
    let sub_len = format.sub_len();
    for (at, block) in blocks.iter().enumerate() {
        let mut isums: Sums<C> = [[_mm256_setzero_si256(); 2]; C];
        for sub in 0..rolled(SUPER / sub_len) {
            for part in 0..sub_len / 4 / G {
                let group = sub * sub_len / 4 + part * G;
                // SAFETY: the group lies within the block, and the columns' codes are in the same order.
                let sums = unsafe {
                    let codes = columns.map(|column| column.codes.add(SUPER * at + 4 * group));
                    narrow::<C, G>(block.codes.as_ptr().add(GROUP * group), &codes)
                };
                // SAFETY: the block has scales for each sub-block.
                scaled!(isums, sums, unsafe { block.scales.get_unchecked(sub) });
            }
        }
        // SAFETY: the columns have activations for the block, and the outputs belong to them.
        unsafe { add_super_block::<F, C>(block, at, columns, &isums, out) };
    }
}

/// Adds the results of a super-block to the outputs: its scaled sums `isums`, and its minima or offsets.
///
/// # Safety
/// Same as for [`super_blocks`], with `block` as block `at`.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub unsafe fn add_super_block<const F: usize, const C: usize>(
    block: &SuperBlock,
    at: usize,
    columns: &[Column; C],
    isums: &Sums<C>,
    out: *mut f32,
) {
    let format = const { FORMATS[F] };
    let pairs = SUPER / format.sub_len() / 2;
    for (c, column) in columns.iter().enumerate() {
        for half in 0..2 {
            // SAFETY: each block has 2 * pairs sums and one scale in each column, and the outputs belong to it.
            unsafe {
                let out = out.add(ROWS * c + 8 * half);
                let sums = column.sums.cast::<i32>().add(pairs * at);
                let mut minima = _mm256_setzero_si256();
                for pair in 0..pairs {
                    let factors = block.factors[pair].as_ptr().cast::<__m256i>().add(half);
                    let sum = _mm256_set1_epi32(sums.add(pair).read_unaligned());
                    minima = _mm256_add_epi32(minima, _mm256_madd_epi16(_mm256_load_si256(factors), sum));
                }
                let d_a = _mm256_set1_ps(*column.d.add(at));
                let d = _mm256_mul_ps(_mm256_load_ps(block.d.as_ptr().add(8 * half)), d_a);
                if format.has_mins() {
                    let m = _mm256_mul_ps(_mm256_load_ps(block.m.as_ptr().add(8 * half)), d_a);
                    accumulate(out, d, _mm256_cvtepi32_ps(isums[c][half]));
                    accumulate(out, m, _mm256_cvtepi32_ps(minima));
                } else {
                    accumulate(out, d, _mm256_cvtepi32_ps(_mm256_add_epi32(isums[c][half], minima)));
                }
            }
        }
    }
}

/// Multiplies super-blocks of 16-bit codes.
///
/// # Safety
/// Same as for [`super_blocks`].
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub unsafe fn wide_super_blocks<const C: usize>(
    blocks: &[WideSuperBlock],
    columns: &[Column; C],
    out: *mut f32,
) {
    for (at, block) in blocks.iter().enumerate() {
        let mut isums: Sums<C> = [[_mm256_setzero_si256(); 2]; C];
        for sub in 0..rolled(SUPER / SMALL) {
            // SAFETY: the sub-block lies within the block; the scales have 64 aligned bytes.
            unsafe {
                let scales = block.scales.as_ptr().add(sub);
                let codes = columns.map(|column| column.codes.add(2 * (SUPER * at + SMALL * sub)));
                let sums = wide::<C>(block.codes.as_ptr().add(SMALL * ROWS * sub), &codes);
                for half in 0..2 {
                    let scale = _mm256_load_si256(scales.cast::<__m256i>().add(half));
                    for (isum, sum) in isums.iter_mut().zip(&sums) {
                        isum[half] = _mm256_add_epi32(isum[half], _mm256_mullo_epi32(sum[half], scale));
                    }
                }
            }
        }
        for (c, column) in columns.iter().enumerate() {
            for half in 0..2 {
                // SAFETY: the outputs belong to the column.
                unsafe {
                    let d_a = _mm256_set1_ps(*column.d.add(at));
                    let d = _mm256_mul_ps(_mm256_load_ps(block.d.as_ptr().add(8 * half)), d_a);
                    accumulate(out.add(ROWS * c + 8 * half), d, _mm256_cvtepi32_ps(isums[c][half]));
                }
            }
        }
    }
}

/// Multiplies blocks of 32 elements. `G` is the number of groups whose sums fit 16 bits.
///
/// # Safety
/// Same as for [`super_blocks`].
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub unsafe fn small_blocks<const F: usize, const C: usize, const G: usize>(
    blocks: &[SmallBlock],
    columns: &[Column; C],
    out: *mut f32,
) {
    let ones = _mm256_set1_epi16(1);
    for (at, block) in blocks.iter().enumerate() {
        let mut isums: Sums<C> = columns.map(|column| {
            // SAFETY: there is a sum for each block.
            [_mm256_set1_epi32(unsafe { *column.sums.cast::<i32>().add(at) }); 2]
        });
        for part in 0..SMALL / 4 / G {
            // SAFETY: the groups lie within the block.
            let sums = unsafe {
                let codes = columns.map(|column| column.codes.add(SMALL * at + 4 * G * part));
                narrow::<C, G>(block.codes.as_ptr().add(GROUP * G * part), &codes)
            };
            for (isum, sum) in isums.iter_mut().zip(&sums) {
                for half in 0..2 {
                    isum[half] = _mm256_add_epi32(isum[half], _mm256_madd_epi16(sum[half], ones));
                }
            }
        }
        // SAFETY: the columns have activations for the block, and the outputs belong to them.
        unsafe { add_small_block::<F, C>(block, at, columns, &isums, out) };
    }
}

/// Adds the results of a block of 32 elements to the outputs: its sums `isums`, and its minima.
///
/// # Safety
/// Same as for [`super_blocks`], with `block` as block `at`.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub unsafe fn add_small_block<const F: usize, const C: usize>(
    block: &SmallBlock,
    at: usize,
    columns: &[Column; C],
    isums: &Sums<C>,
    out: *mut f32,
) {
    let format = const { FORMATS[F] };
    for (c, column) in columns.iter().enumerate() {
        for half in 0..2 {
            // SAFETY: there is a scale for each block, and the outputs belong to the column.
            unsafe {
                let out = out.add(ROWS * c + 8 * half);
                let d_a = _mm256_set1_ps(*column.d.add(at));
                let d = _mm256_mul_ps(_mm256_load_ps(block.d.as_ptr().add(8 * half)), d_a);
                accumulate(out, d, _mm256_cvtepi32_ps(isums[c][half]));
                if has_totals(format) {
                    let m = _mm256_load_ps(block.m.as_ptr().add(8 * half));
                    accumulate(out, m, _mm256_set1_ps(*column.totals.add(at)));
                }
            }
        }
    }
}

/// Multiplies blocks of 32 elements of 16-bit codes.
///
/// # Safety
/// Same as for [`super_blocks`].
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub unsafe fn wide_small_blocks<const C: usize>(
    blocks: &[WideSmallBlock],
    columns: &[Column; C],
    out: *mut f32,
) {
    for (at, block) in blocks.iter().enumerate() {
        // SAFETY: the columns have activations for all blocks, and the outputs belong to them.
        unsafe {
            let codes = columns.map(|column| column.codes.add(2 * SMALL * at));
            let sums = wide::<C>(block.codes.as_ptr(), &codes);
            for (c, column) in columns.iter().enumerate() {
                for half in 0..2 {
                    let d_a = _mm256_set1_ps(*column.d.add(at));
                    let d = _mm256_mul_ps(_mm256_load_ps(block.d.as_ptr().add(8 * half)), d_a);
                    accumulate(out.add(ROWS * c + 8 * half), d, _mm256_cvtepi32_ps(sums[c][half]));
                }
            }
        }
    }
}
