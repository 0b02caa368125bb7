//! Products with few columns. Codes go directly from the packed block to registers, without expanded blocks.
//!
//! With one column, a product takes as long as memory needs to deliver the weights, so each byte is read once and never
//! written.

use std::arch::x86_64::*;

use super::expand::{codes, eight_scales, interleaved, scales_and_factors, widened};
use super::sums::Sums;
use super::tile::accumulate;
use crate::activations::has_totals;
use crate::format::{FORMATS, SMALL, SUPER};
use crate::kernel::Column;
use crate::panel::{BlockParts, GROUPS, Planes, ROWS};

/// Distance in bytes at which weights are prefetched. The hardware prefetchers stop at each page of 4 KiB. On a Zen 3,
/// this distance makes Q6_K 1.6 times and Q4_K 1.2 times as fast (`examples/speed`).
const AHEAD: usize = 4096;

/// Prefetches `bytes` bytes of weights, [`AHEAD`] bytes after `packed`.
#[target_feature(enable = "avx2")]
#[inline]
pub fn prefetch(packed: *const u8, bytes: usize) {
    for line in (0..bytes).step_by(64) {
        _mm_prefetch::<_MM_HINT_T0>(packed.wrapping_add(AHEAD + line).cast());
    }
}

/// Returns four codes of a column in each 32-bit lane.
///
/// # Safety
/// `codes` must be valid for reads of 4 bytes.
#[target_feature(enable = "avx2")]
#[inline]
pub unsafe fn four(codes: *const u8) -> __m256i {
    // SAFETY: the caller's contract.
    _mm256_set1_epi32(unsafe { codes.cast::<i32>().read_unaligned() })
}

/// Returns the sums over `G` groups, starting at group `FIRST`, in 16-bit lanes. `FIRST` is a constant, because only
/// bit shifts by a constant are fast.
///
/// # Safety
/// `unit` must be valid for reads of a unit, and each column for the unit's activations.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
unsafe fn narrow<const F: usize, const C: usize, const G: usize, const FIRST: usize>(
    unit: *const u8,
    columns: &[*const u8; C],
) -> Sums<C> {
    let mut sums = [[_mm256_setzero_si256(); 2]; C];
    for group in FIRST..FIRST + G {
        for half in 0..2 {
            // SAFETY: the caller's contract.
            unsafe {
                let codes = codes::<F>(unit, group, half);
                for (sum, column) in sums.iter_mut().zip(columns) {
                    let products = _mm256_maddubs_epi16(codes, four(column.add(4 * group)));
                    sum[half] = _mm256_add_epi16(sum[half], products);
                }
            }
        }
    }
    sums
}

/// Runs `$body` for each sum of a unit, with the constant `$first` as the number of its first group.
macro_rules! each_sum {
    ($g:ident, |$first:ident| $body:block) => {{
        macro_rules! at {
            ($number:literal) => {{
                const $first: usize = $number;
                $body
            }};
        }
        at!(0);
        if $g == 2 {
            at!(2);
        }
        if $g <= 4 {
            at!(4);
        }
        if $g == 2 {
            at!(6);
        }
    }};
}

/// Returns the sums over a unit of signed 8-bit values, in 32-bit lanes.
///
/// # Safety
/// Same as for [`narrow`], with activations of 16 bits.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
unsafe fn wide<const F: usize, const C: usize>(unit: *const u8, columns: &[*const u8; C]) -> Sums<C> {
    let mut sums = [[_mm256_setzero_si256(); 2]; C];
    for group in 0..GROUPS {
        for half in 0..2 {
            // SAFETY: the caller's contract.
            unsafe {
                let [even, odd] = widened(codes::<F>(unit, group, half));
                for (sum, column) in sums.iter_mut().zip(columns) {
                    let first = _mm256_madd_epi16(even, four(column.add(8 * group)));
                    let second = _mm256_madd_epi16(odd, four(column.add(8 * group + 4)));
                    sum[half] = _mm256_add_epi32(sum[half], _mm256_add_epi32(first, second));
                }
            }
        }
    }
    sums
}

/// Multiplies the packed super-block at `packed`, which is block `at` of the columns.
///
/// # Safety
/// The columns must have activations for the block; `out` must be valid for `C * 16` floats, column after column.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub unsafe fn super_block<const F: usize, const C: usize, const G: usize>(
    packed: *const u8,
    at: usize,
    columns: &[Column; C],
    out: *mut f32,
) {
    let format = const { FORMATS[F] };
    let planes = Planes::of(format);
    let sub_len = format.sub_len();
    let mut isums: Sums<C> = [[_mm256_setzero_si256(); 2]; C];
    let mut minima: Sums<C> = [[_mm256_setzero_si256(); 2]; C];
    for pair in 0..SUPER / SMALL / 2 {
        // Factors of the sub-blocks in two units.
        let mut factors = [_mm256_setzero_si256(); 4];
        for place in 0..2 {
            let unit = 2 * pair + place;
            let subs = SMALL / sub_len;
            // SAFETY: the block has these units, and the columns their activations.
            unsafe {
                let mut scales = [[_mm256_setzero_si256(); 2]; 2];
                for sub in 0..subs {
                    let (scale, factor) = scales_and_factors::<F>(packed, subs * unit + sub);
                    scales[sub] = interleaved(scale, scale);
                    factors[subs * place + sub] = factor;
                }
                let codes = columns.map(|column| column.codes.add(SUPER * at + SMALL * unit));
                let unit = packed.add(unit * planes.unit_bytes());
                prefetch(unit, planes.unit_bytes());
                each_sum!(G, |FIRST| {
                    let sums = narrow::<F, C, G, FIRST>(unit, &codes);
                    let scale = scales[4 * FIRST / sub_len];
                    for (isum, sum) in isums.iter_mut().zip(&sums) {
                        for half in 0..2 {
                            isum[half] =
                                _mm256_add_epi32(isum[half], _mm256_madd_epi16(sum[half], scale[half]));
                        }
                    }
                });
            }
        }
        for of_two in 0..SMALL / sub_len {
            let factors = interleaved(factors[2 * of_two], factors[2 * of_two + 1]);
            for (minimum, column) in minima.iter_mut().zip(columns) {
                // SAFETY: the column has a pair of sums for each pair of sub-blocks.
                let sums = unsafe {
                    four(column.sums.add(2 * SUPER / sub_len * at + 4 * (SMALL / sub_len * pair + of_two)))
                };
                for half in 0..2 {
                    minimum[half] = _mm256_add_epi32(minimum[half], _mm256_madd_epi16(factors[half], sums));
                }
            }
        }
    }
    // SAFETY: the block has its scales; the outputs belong to the columns.
    unsafe { add_super_block::<F, C>(packed, at, columns, &isums, &minima, out) };
}

/// Adds the results of a super-block to the outputs: its scaled sums, and its minima or offsets.
///
/// # Safety
/// Same as for [`super_block`].
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub unsafe fn add_super_block<const F: usize, const C: usize>(
    packed: *const u8,
    at: usize,
    columns: &[Column; C],
    isums: &Sums<C>,
    minima: &Sums<C>,
    out: *mut f32,
) {
    let format = const { FORMATS[F] };
    let parts = BlockParts::of(format);
    for half in 0..2 {
        // SAFETY: the block has its scales; the outputs belong to the columns.
        unsafe {
            let d_w = eight_scales::<F>(packed.add(parts.d), half);
            let m_w = match format.has_mins() {
                true => _mm256_xor_ps(eight_scales::<F>(packed.add(parts.m), half), _mm256_set1_ps(-0.0)),
                false => _mm256_setzero_ps(),
            };
            for (c, column) in columns.iter().enumerate() {
                let out = out.add(ROWS * c + 8 * half);
                let d_a = _mm256_set1_ps(*column.d.add(at));
                let d = _mm256_mul_ps(d_w, d_a);
                if format.has_mins() {
                    accumulate(out, d, _mm256_cvtepi32_ps(isums[c][half]));
                    accumulate(out, _mm256_mul_ps(m_w, d_a), _mm256_cvtepi32_ps(minima[c][half]));
                } else {
                    let isum = _mm256_add_epi32(isums[c][half], minima[c][half]);
                    accumulate(out, d, _mm256_cvtepi32_ps(isum));
                }
            }
        }
    }
}

/// Multiplies a packed super-block of signed 8-bit values.
///
/// # Safety
/// Same as for [`super_block`].
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub unsafe fn wide_super_block<const F: usize, const C: usize>(
    packed: *const u8,
    at: usize,
    columns: &[Column; C],
    out: *mut f32,
) {
    let format = const { FORMATS[F] };
    let (parts, planes) = (BlockParts::of(format), Planes::of(format));
    let mut isums: Sums<C> = [[_mm256_setzero_si256(); 2]; C];
    for sub in 0..SUPER / SMALL {
        // SAFETY: the block has this sub-block, and the columns its activations.
        unsafe {
            let codes = columns.map(|column| column.codes.add(2 * (SUPER * at + SMALL * sub)));
            prefetch(packed.add(sub * planes.unit_bytes()), planes.unit_bytes());
            let sums = wide::<F, C>(packed.add(sub * planes.unit_bytes()), &codes);
            for half in 0..2 {
                let scales = packed.add(parts.scales + ROWS * sub + 8 * half);
                let scale = _mm256_cvtepi8_epi32(_mm_loadl_epi64(scales.cast()));
                for (isum, sum) in isums.iter_mut().zip(&sums) {
                    isum[half] = _mm256_add_epi32(isum[half], _mm256_mullo_epi32(sum[half], scale));
                }
            }
        }
    }
    for half in 0..2 {
        for (c, column) in columns.iter().enumerate() {
            // SAFETY: the block has its scales; the outputs belong to the column.
            unsafe {
                let d_w = eight_scales::<F>(packed.add(parts.d), half);
                let d = _mm256_mul_ps(d_w, _mm256_set1_ps(*column.d.add(at)));
                accumulate(out.add(ROWS * c + 8 * half), d, _mm256_cvtepi32_ps(isums[c][half]));
            }
        }
    }
}

/// Multiplies a packed block of 32 elements. `G` is the number of groups whose sums fit 16 bits, or 0 for signed 8-bit
/// values.
///
/// # Safety
/// Same as for [`super_block`].
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub unsafe fn small_block<const F: usize, const C: usize, const G: usize>(
    packed: *const u8,
    at: usize,
    columns: &[Column; C],
    out: *mut f32,
) {
    prefetch(packed, BlockParts::of(const { FORMATS[F] }).bytes);
    // SAFETY: the columns have activations for the block; the outputs belong to them.
    unsafe {
        let isums = if G == 0 {
            wide::<F, C>(packed, &columns.map(|column| column.codes.add(2 * SMALL * at)))
        } else {
            let codes = columns.map(|column| column.codes.add(SMALL * at));
            let mut isums = columns.map(|column| [four(column.sums.add(4 * at)); 2]);
            each_sum!(G, |FIRST| {
                let sums = narrow::<F, C, G, FIRST>(packed, &codes);
                for (isum, sum) in isums.iter_mut().zip(&sums) {
                    for half in 0..2 {
                        let sum = _mm256_madd_epi16(sum[half], _mm256_set1_epi16(1));
                        isum[half] = _mm256_add_epi32(isum[half], sum);
                    }
                }
            });
            isums
        };
        add_small_block::<F, C>(packed, at, columns, &isums, out);
    }
}

/// Adds the results of a block of 32 elements to the outputs: its sums, and its minima.
///
/// # Safety
/// Same as for [`super_block`].
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub unsafe fn add_small_block<const F: usize, const C: usize>(
    packed: *const u8,
    at: usize,
    columns: &[Column; C],
    isums: &Sums<C>,
    out: *mut f32,
) {
    let format = const { FORMATS[F] };
    let parts = BlockParts::of(format);
    // SAFETY: the block has its scales; the outputs belong to the columns.
    unsafe {
        for half in 0..2 {
            let d_w = eight_scales::<F>(packed.add(parts.d), half);
            for (c, column) in columns.iter().enumerate() {
                let out = out.add(ROWS * c + 8 * half);
                let d = _mm256_mul_ps(d_w, _mm256_set1_ps(*column.d.add(at)));
                accumulate(out, d, _mm256_cvtepi32_ps(isums[c][half]));
                if has_totals(format) {
                    let m = eight_scales::<F>(packed.add(parts.m), half);
                    accumulate(out, m, _mm256_set1_ps(*column.totals.add(at)));
                }
            }
        }
    }
}
