//! Tiles: sixteen rows times one to eight columns, over some blocks of a row.

use std::arch::x86_64::*;

use super::weights::{broadcast, codes, factors, float_scales, scale_pairs, scales};
use crate::activations::has_totals;
use crate::format::{FORMATS, Format, SMALL, SUPER};
use crate::kernel::Column;
use crate::panel::{BlockParts, Planes, ROWS};

/// Distance in bytes at which weights are prefetched.
const AHEAD: usize = 8192;

/// Order in which the weights of one column reach the cache. The kernel assembles codes plane by plane, and hardware
/// prefetchers do not follow this order.
#[derive(Clone, Copy)]
pub enum Reading {
    /// One byte of each cache line is read in ascending order. On a Zen 4, this makes a product of Q6_K with one column
    /// 1.28 times as fast; prefetch instructions are slower (`docs/results/by-hand/read-order-zen4.json`).
    InOrder,
    /// Weights are prefetched [`AHEAD`] bytes before they are used. On a Xeon with AMX, this makes a product of Q4_K or
    /// Q6_K with one column 1.7 times as fast as [`Reading::InOrder`] (`docs/results/by-hand/read-order-amx.json`).
    Ahead,
}

impl Reading {
    /// Brings `bytes` bytes of weights into the cache.
    ///
    /// # Safety
    /// `packed` must be valid for reads of `bytes` bytes.
    #[target_feature(enable = "avx512f")]
    #[inline]
    unsafe fn bring(self, packed: *const u8, bytes: usize) {
        for line in (0..bytes).step_by(64) {
            match self {
                // SAFETY: the caller's contract.
                Self::InOrder => _ = unsafe { packed.add(line).read_volatile() },
                Self::Ahead => _mm_prefetch::<_MM_HINT_T0>(packed.wrapping_add(AHEAD + line).cast()),
            }
        }
    }
}

/// Adds the products of some groups of a unit to the sums. The groups must be within the unit, and the columns' codes
/// must be in the same order. The number of a group is a constant, because a shift by a constant is a single
/// instruction.
macro_rules! add_groups {
    ($sums:ident, $unit:expr, $columns:expr, $($group:literal),+) => {
        $({
            let weights = codes::<F, $group>($unit);
            for (sum, column) in $sums.iter_mut().zip($columns) {
                *sum = _mm512_dpbusd_epi32(*sum, weights, broadcast(column.add(4 * $group)));
            }
        })+
    };
}

/// Adds the products of half a unit, four groups, to the sums of the columns.
///
/// # Safety
/// `unit` must be valid for reads of a unit, and each column for the unit's activations.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
unsafe fn half_unit<const F: usize, const C: usize, const HALF: usize>(
    mut sums: [__m512i; C],
    unit: *const u8,
    columns: &[*const u8; C],
) -> [__m512i; C] {
    // SAFETY: the caller's contract.
    unsafe {
        if HALF == 0 {
            add_groups!(sums, unit, columns, 0, 1, 2, 3);
        } else {
            add_groups!(sums, unit, columns, 4, 5, 6, 7);
        }
    }
    sums
}

/// Adds the sums of a sub-block, each multiplied by its row's scale.
#[target_feature(enable = "avx512f")]
#[inline]
fn add_scaled<const C: usize>(isums: &mut [__m512i; C], sums: &[__m512i; C], scale: __m512i) {
    for (isum, sum) in isums.iter_mut().zip(sums) {
        *isum = _mm512_add_epi32(*isum, _mm512_mullo_epi32(*sum, scale));
    }
}

/// Adds the sums of two sub-blocks, which fit 16 bits, each multiplied by its row's scale. One instruction multiplies
/// both.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
#[inline]
fn add_scaled_pairs<const C: usize>(
    isums: &mut [__m512i; C],
    first: &[__m512i; C],
    second: &[__m512i; C],
    scales: __m512i,
) {
    for ((isum, first), second) in isums.iter_mut().zip(first).zip(second) {
        let both = _mm512_mask_blend_epi16(0xaaaa_aaaa, *first, _mm512_slli_epi32::<16>(*second));
        *isum = _mm512_dpwssd_epi32(*isum, both, scales);
    }
}

/// True if the sum of a sub-block of 16 elements fits 16 bits: codes of at most 3 bits times activations of 8 bits.
const fn sums_fit_16_bits(format: Format) -> bool {
    matches!(format, Format::Q2K | Format::Q3K)
}

/// Multiplies `count` packed super-blocks, starting at `packed`.
///
/// # Safety
/// The columns must have activations for all blocks; `out` must be valid for `C * 16` floats, column after column. The
/// CPU must have the instruction set.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
pub unsafe fn super_blocks<const F: usize, const C: usize>(
    reading: Reading,
    packed: *const u8,
    count: usize,
    columns: &[Column; C],
    out: *mut f32,
) {
    let format = const { FORMATS[F] };
    let (parts, unit_bytes) = (BlockParts::of(format), Planes::of(format).unit_bytes());
    let sub_len = format.sub_len();
    for at in 0..count {
        // SAFETY: the panel has all blocks; the columns and outputs belong to it.
        unsafe {
            let packed = packed.add(parts.bytes * at);
            let zeros = [_mm512_setzero_si512(); C];
            let mut isums = zeros;
            for number in 0..SUPER / SMALL {
                let unit = packed.add(unit_bytes * number);
                reading.bring(unit, unit_bytes);
                let activations = columns.map(|column| column.codes.add(SUPER * at + SMALL * number));
                let first = half_unit::<F, C, 0>(zeros, unit, &activations);
                if sub_len == SMALL {
                    let sums = half_unit::<F, C, 1>(first, unit, &activations);
                    add_scaled(&mut isums, &sums, scales::<F>(packed, number));
                    continue;
                }
                let second = half_unit::<F, C, 1>(zeros, unit, &activations);
                if sums_fit_16_bits(format) {
                    add_scaled_pairs(&mut isums, &first, &second, scale_pairs::<F>(packed, number));
                } else {
                    add_scaled(&mut isums, &first, scales::<F>(packed, 2 * number));
                    add_scaled(&mut isums, &second, scales::<F>(packed, 2 * number + 1));
                }
            }
            // Minima have a separate sum; offsets are added to the main sum.
            let mut minima = if format.has_mins() { zeros } else { isums };
            let pairs = SUPER / sub_len / 2;
            for pair in 0..pairs {
                let factors = factors::<F>(packed, pair);
                for (minimum, column) in minima.iter_mut().zip(columns) {
                    let sums = broadcast(column.sums.add(4 * (pairs * at + pair)));
                    *minimum = _mm512_dpwssd_epi32(*minimum, factors, sums);
                }
            }
            let d_w = float_scales::<F>(packed.add(parts.d));
            for (c, column) in columns.iter().enumerate() {
                let d_a = _mm512_set1_ps(*column.d.add(at));
                let d = _mm512_mul_ps(d_w, d_a);
                let out = out.add(ROWS * c);
                let mut sum = _mm512_loadu_ps(out);
                if format.has_mins() {
                    sum = _mm512_fmadd_ps(d, _mm512_cvtepi32_ps(isums[c]), sum);
                    let m_w = float_scales::<F>(packed.add(parts.m));
                    sum = _mm512_fnmadd_ps(_mm512_mul_ps(m_w, d_a), _mm512_cvtepi32_ps(minima[c]), sum);
                } else {
                    sum = _mm512_fmadd_ps(d, _mm512_cvtepi32_ps(minima[c]), sum);
                }
                _mm512_storeu_ps(out, sum);
            }
        }
    }
}

/// Multiplies `count` packed blocks of 32 elements, starting at `packed`.
///
/// # Safety
/// Same as for [`super_blocks`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
pub unsafe fn small_blocks<const F: usize, const C: usize>(
    reading: Reading,
    packed: *const u8,
    count: usize,
    columns: &[Column; C],
    out: *mut f32,
) {
    let format = const { FORMATS[F] };
    let parts = BlockParts::of(format);
    let mut totals = [_mm512_setzero_ps(); C];
    // SAFETY: the panel has all blocks; the columns and outputs belong to it.
    unsafe {
        for (c, total) in totals.iter_mut().enumerate() {
            *total = _mm512_loadu_ps(out.add(ROWS * c));
        }
        for at in 0..count {
            let packed = packed.add(parts.bytes * at);
            reading.bring(packed, parts.bytes);
            let mut isums = columns.map(|column| broadcast(column.sums.add(4 * at)));
            let activations = columns.map(|column| column.codes.add(SMALL * at));
            add_groups!(isums, packed, &activations, 0, 1, 2, 3, 4, 5, 6, 7);
            let d_w = float_scales::<F>(packed.add(parts.d));
            for ((total, isum), column) in totals.iter_mut().zip(&isums).zip(columns) {
                let d = _mm512_mul_ps(d_w, _mm512_set1_ps(*column.d.add(at)));
                *total = _mm512_fmadd_ps(d, _mm512_cvtepi32_ps(*isum), *total);
                if has_totals(format) {
                    let m = float_scales::<F>(packed.add(parts.m));
                    *total = _mm512_fmadd_ps(m, _mm512_set1_ps(*column.totals.add(at)), *total);
                }
            }
        }
        for (c, total) in totals.iter().enumerate() {
            _mm512_storeu_ps(out.add(ROWS * c), *total);
        }
    }
}
