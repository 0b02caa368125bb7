//! Products with few columns. Codes go directly from the packed block to registers, for the same reason as with AVX2.

use std::arch::x86_64::*;

use super::sums::{scale_pair, split_order};
use crate::avx2::direct::{add_small_block, add_super_block, four, prefetch};
use crate::avx2::expand::{interleaved, scales_and_factors, unsigned_codes};
use crate::avx2::sums::Sums;
use crate::format::{FORMATS, SMALL, SUPER};
use crate::kernel::Column;
use crate::panel::{BlockParts, Planes};

/// Adds the products of some groups of a unit to the sums. The number of a group is a literal, because only shifts by a
/// constant are fast.
macro_rules! add_groups {
    ($sums:ident, $unit:expr, $columns:expr, $($group:literal),+) => {
        $(for half in 0..2 {
            let weights = unsigned_codes::<F>($unit, $group, half);
            for (sum, column) in $sums.iter_mut().zip($columns) {
                sum[half] = _mm256_dpbusd_avx_epi32(sum[half], weights, four(column.add(4 * $group)));
            }
        })+
    };
}

/// Adds the sums of sub-block `sub`, each multiplied by its row's scale.
///
/// # Safety
/// `packed` must be valid for reads of a packed super-block.
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
#[inline]
unsafe fn add_scaled<const F: usize, const C: usize>(
    isums: &mut Sums<C>,
    sums: &Sums<C>,
    packed: *const u8,
    sub: usize,
) {
    // SAFETY: the caller's contract.
    let scales = scale_pair(unsafe { scales_and_factors::<F>(packed, sub) }.0);
    for (isum, sum) in isums.iter_mut().zip(sums) {
        for half in 0..2 {
            let parts = _mm256_shuffle_epi8(sum[half], split_order());
            isum[half] = _mm256_dpwssd_avx_epi32(isum[half], parts, scales[half]);
        }
    }
}

/// Multiplies the packed super-block at `packed`, which is block `at` of the columns.
///
/// # Safety
/// The columns must have activations for the block; `out` must be valid for `C * 16` floats, column after column. The
/// CPU must have the instruction set.
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
#[inline]
pub unsafe fn super_block<const F: usize, const C: usize>(
    packed: *const u8,
    at: usize,
    columns: &[Column; C],
    out: *mut f32,
) {
    let format = const { FORMATS[F] };
    let unit_bytes = Planes::of(format).unit_bytes();
    let zeros: Sums<C> = [[_mm256_setzero_si256(); 2]; C];
    let (mut isums, mut minima) = (zeros, zeros);
    // SAFETY: the block has all units, and the columns have activations and sums for them.
    unsafe {
        for number in 0..SUPER / SMALL {
            let unit = packed.add(unit_bytes * number);
            prefetch(unit, unit_bytes);
            let codes = &columns.map(|column| column.codes.add(SUPER * at + SMALL * number));
            let mut sums = zeros;
            add_groups!(sums, unit, codes, 0, 1, 2, 3);
            let subs = SMALL / format.sub_len();
            if subs == 2 {
                add_scaled::<F, C>(&mut isums, &sums, packed, 2 * number);
                sums = zeros;
            }
            add_groups!(sums, unit, codes, 4, 5, 6, 7);
            add_scaled::<F, C>(&mut isums, &sums, packed, subs * (number + 1) - 1);
        }
        let pairs = SUPER / format.sub_len() / 2;
        for pair in 0..pairs {
            let first = scales_and_factors::<F>(packed, 2 * pair).1;
            let second = scales_and_factors::<F>(packed, 2 * pair + 1).1;
            let factors = interleaved(first, second);
            for (minimum, column) in minima.iter_mut().zip(columns) {
                let sums = four(column.sums.add(4 * (pairs * at + pair)));
                for half in 0..2 {
                    minimum[half] = _mm256_dpwssd_avx_epi32(minimum[half], factors[half], sums);
                }
            }
        }
        add_super_block::<F, C>(packed, at, columns, &isums, &minima, out);
    }
}

/// Multiplies a packed block of 32 elements.
///
/// # Safety
/// Same as for [`super_block`].
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
#[inline]
pub unsafe fn small_block<const F: usize, const C: usize>(
    packed: *const u8,
    at: usize,
    columns: &[Column; C],
    out: *mut f32,
) {
    prefetch(packed, BlockParts::of(const { FORMATS[F] }).bytes);
    let mut isums: Sums<C> = [[_mm256_setzero_si256(); 2]; C];
    // SAFETY: the columns have activations and a sum for the block; the outputs belong to them.
    unsafe {
        for (isum, column) in isums.iter_mut().zip(columns) {
            *isum = [four(column.sums.add(4 * at)); 2];
        }
        let codes = &columns.map(|column| column.codes.add(SMALL * at));
        add_groups!(isums, packed, codes, 0, 1, 2, 3, 4, 5, 6, 7);
        add_small_block::<F, C>(packed, at, columns, &isums, out);
    }
}
