//! Attention to one tile of cells: conversion of keys and values to F32, scores, weights and sums of values.

use std::arch::x86_64::*;
use std::ops::Range;

use crate::cache::{CacheFormat, CacheRows, MASKED};
use crate::reference::{EXP2, LARGEST, LEAST, NOTHING, Score};

/// Number of cells whose keys or values are converted together: 24 KB for heads of 128 floats.
pub const TILE: usize = 48;

/// Writes to `cells` the cells of `unit` that at least one of `masks` allows. Returns the number of these cells, and
/// the sum, over all masks, of the number of cells that each mask allows. Without masks, all cells are allowed.
///
/// # Safety
/// The CPU must have AVX2; each mask must reach to the end of the unit; `cells` must have room for the unit.
#[target_feature(enable = "avx2,fma,f16c")]
pub unsafe fn allowed<'a>(
    masks: impl Iterator<Item = &'a [u16]> + Clone,
    unit: Range<usize>,
    cells: &mut [u32],
) -> (usize, usize) {
    let (mut count, mut sum) = (0, 0);
    if masks.clone().next().is_none() {
        for (cell, out) in unit.clone().zip(cells.iter_mut()) {
            *out = cell as u32;
        }
        return (unit.len(), usize::MAX / 2);
    }
    for start in unit.clone().step_by(16) {
        let end = unit.end.min(start + 16);
        let mut union = 0u32;
        for mask in masks.clone() {
            let bits = if end - start == 16 {
                let masked = _mm256_set1_epi16(MASKED as i16);
                // SAFETY: the mask has 16 more elements.
                let row = unsafe { _mm256_loadu_si256(mask.as_ptr().add(start).cast()) };
                let equal = _mm256_cmpeq_epi16(row, masked);
                let bytes =
                    _mm_packs_epi16(_mm256_castsi256_si128(equal), _mm256_extracti128_si256::<1>(equal));
                !_mm_movemask_epi8(bytes) as u32 & 0xffff
            } else {
                let allowed = mask[start..end].iter().enumerate();
                allowed.fold(0, |bits, (at, value)| bits | u32::from(*value != MASKED) << at)
            };
            union |= bits;
            sum += bits.count_ones() as usize;
        }
        while union != 0 {
            cells[count] = start as u32 + union.trailing_zeros();
            count += 1;
            union &= union - 1;
        }
    }
    (count, sum)
}

/// Converts rows to F32. Returns true if all elements are finite. Also prefetches the rows `ahead`.
///
/// # Safety
/// The rows must be valid; `out` must be valid for writes of `rows.part.len()` floats for each row.
#[target_feature(enable = "avx2,fma,f16c")]
pub unsafe fn convert(rows: &CacheRows, ahead: &CacheRows, out: *mut f32) -> bool {
    let bytes_ahead = ahead.format.bytes(ahead.part.start)..ahead.format.bytes(ahead.part.end);
    let part = &rows.part;
    macro_rules! rows {
        (|$from:ident, $at:ident| $load:expr) => {{
            let mut largest = _mm256_setzero_si256();
            for (row, cell) in rows.cells.iter().enumerate() {
                // SAFETY: the caller's contract.
                unsafe {
                    let from = rows.base.add(*cell as usize * rows.stride);
                    if let Some(cell) = ahead.cells.get(row) {
                        let ahead = ahead.base.add(*cell as usize * ahead.stride);
                        for line in bytes_ahead.clone().step_by(64) {
                            _mm_prefetch::<_MM_HINT_T1>(ahead.add(line).cast());
                        }
                    }
                    let to = out.add(row * part.len());
                    for at in part.clone().step_by(8) {
                        let ($from, $at) = (from, at);
                        let values: __m256 = $load;
                        largest = _mm256_max_epi32(largest, magnitude(values));
                        _mm256_storeu_ps(to.add(at - part.start), values);
                    }
                }
            }
            largest
        }};
    }
    let largest = match rows.format {
        CacheFormat::F32 => rows!(|from, at| _mm256_loadu_ps(from.cast::<f32>().add(at))),
        CacheFormat::F16 => {
            rows!(|from, at| _mm256_cvtph_ps(_mm_loadu_si128(from.cast::<u16>().add(at).cast())))
        }
        CacheFormat::Bf16 => rows!(|from, at| {
            let halves = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast::<u16>().add(at).cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(halves))
        }),
        CacheFormat::Q8_0 => rows!(|from, at| {
            let block = from.add(at / 32 * 34);
            let codes = _mm256_cvtepi8_epi32(_mm_loadl_epi64(block.add(2 + at % 32).cast()));
            _mm256_mul_ps(half(block), _mm256_cvtepi32_ps(codes))
        }),
        CacheFormat::Q4_0 => rows!(|from, at| {
            let block = from.add(at / 32 * 18);
            // The first half of a block is in the low nibbles, the second half in the high ones.
            let bytes = _mm_loadl_epi64(block.add(2 + at % 16).cast());
            let nibbles = if at % 32 < 16 { bytes } else { _mm_srli_epi16::<4>(bytes) };
            let codes = _mm256_cvtepi8_epi32(_mm_and_si128(nibbles, _mm_set1_epi8(15)));
            let codes = _mm256_sub_epi32(codes, _mm256_set1_epi32(8));
            _mm256_mul_ps(half(block), _mm256_cvtepi32_ps(codes))
        }),
    };
    let infinite = _mm256_cmpgt_epi32(largest, _mm256_set1_epi32(0x7f7f_ffff));
    _mm256_testz_si256(infinite, infinite) == 1
}

/// Returns the bits of the absolute values, which have the same order as the values. Infinities and NaNs have the
/// largest bits.
#[target_feature(enable = "avx2,fma,f16c")]
fn magnitude(values: __m256) -> __m256i {
    _mm256_and_si256(_mm256_castps_si256(values), _mm256_set1_epi32(0x7fff_ffff))
}

/// Returns the F16 at the start of a block in all lanes.
///
/// # Safety
/// `block` must be valid for reads of two bytes.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn half(block: *const u8) -> __m256 {
    // SAFETY: the caller's contract.
    let bits = unsafe { block.cast::<i16>().read_unaligned() };
    _mm256_cvtph_ps(_mm_set1_epi16(bits))
}

/// Writes the products of queries and keys: `out[TILE * row + cell]`.
///
/// # Safety
/// `q` must contain `rows` rows, and `keys` `cells` rows, of `dk` floats each. `cells` and `dk` must be multiples of 8.
#[target_feature(enable = "avx2,fma,f16c")]
pub unsafe fn scores(q: *const f32, rows: usize, keys: *const f32, cells: usize, dk: usize, out: *mut f32) {
    let mut row = 0;
    while row < rows {
        // SAFETY: the caller's contract.
        unsafe {
            let (q, out) = (q.add(row * dk), out.add(row * TILE));
            match rows - row {
                1 => products::<1, 8>(q, keys, cells, dk, out),
                2 | 4 => products::<2, 4>(q, keys, cells, dk, out),
                _ => products::<3, 4>(q, keys, cells, dk, out),
            }
        }
        row += block(rows - row);
    }
}

/// Returns the number of rows in the next block. The sums of three rows fill the registers; four rows are split into
/// two blocks of two.
fn block(left: usize) -> usize {
    match left {
        1 => 1,
        2 | 4 => 2,
        _ => 3,
    }
}

/// Writes the products of `R` queries with all keys, `C` keys at a time.
///
/// # Safety
/// Same as for [`scores`]; `cells` must be a multiple of `C`, and `C` of 4.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn products<const R: usize, const C: usize>(
    q: *const f32,
    keys: *const f32,
    cells: usize,
    dk: usize,
    out: *mut f32,
) {
    for cell in (0..cells).step_by(C) {
        let mut sums = [[_mm256_setzero_ps(); C]; R];
        // SAFETY: the caller's contract.
        unsafe {
            let keys = keys.add(cell * dk);
            for at in (0..dk).step_by(8) {
                let mut queries = [_mm256_setzero_ps(); R];
                for row in 0..R {
                    queries[row] = _mm256_loadu_ps(q.add(row * dk + at));
                }
                for c in 0..C {
                    let key = _mm256_loadu_ps(keys.add(c * dk + at));
                    for row in 0..R {
                        sums[row][c] = _mm256_fmadd_ps(queries[row], key, sums[row][c]);
                    }
                }
            }
            for row in 0..R {
                for c in (0..C).step_by(4) {
                    let s = &sums[row][c..c + 4];
                    let low = _mm256_hadd_ps(s[0], s[1]);
                    let high = _mm256_hadd_ps(s[2], s[3]);
                    let sums = _mm256_hadd_ps(low, high);
                    let sums = _mm_add_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps::<1>(sums));
                    _mm_storeu_ps(out.add(row * TILE + cell + c), sums);
                }
            }
        }
    }
}

/// Splits exponents of two. Returns the exponents rounded to whole numbers, and two to the power of the remainders.
#[target_feature(enable = "avx2,fma,f16c")]
fn split(exponents: __m256) -> (__m256i, __m256) {
    // Both instructions return their second operand if it is NaN.
    let bounded = _mm256_max_ps(_mm256_set1_ps(-LARGEST), _mm256_min_ps(_mm256_set1_ps(LARGEST), exponents));
    let whole = _mm256_cvtps_epi32(bounded);
    let rest = _mm256_sub_ps(bounded, _mm256_cvtepi32_ps(whole));
    let mut power = _mm256_set1_ps(EXP2[0]);
    for factor in &EXP2[1..] {
        power = _mm256_fmadd_ps(power, rest, _mm256_set1_ps(*factor));
    }
    (whole, power)
}

/// Multiplies by powers of two.
#[target_feature(enable = "avx2,fma,f16c")]
fn shift(values: __m256, exponents: __m256i) -> __m256 {
    _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(values), _mm256_slli_epi32::<23>(exponents)))
}

/// Returns hyperbolic tangents, see [`crate::reference::tanh`].
#[target_feature(enable = "avx2,fma,f16c")]
fn tanh(values: __m256) -> __m256 {
    let bounded = _mm256_max_ps(_mm256_set1_ps(-16.0), _mm256_min_ps(_mm256_set1_ps(16.0), values));
    let exponents = _mm256_mul_ps(bounded, _mm256_set1_ps(2.0 * std::f32::consts::LOG2_E));
    let (whole, power) = split(exponents);
    let power = shift(power, whole);
    let one = _mm256_set1_ps(1.0);
    let quotient = _mm256_div_ps(_mm256_sub_ps(power, one), _mm256_add_ps(power, one));
    let number = _mm256_cmp_ps::<_CMP_ORD_Q>(values, values);
    _mm256_blendv_ps(values, quotient, number)
}

/// Turns products into weights `2^(t - reference)`, where `t` is the base-2 logarithm of a cell's weight. Returns the
/// reference: the largest rounded `t`, or [`NOTHING`] if the mask forbids all cells.
///
/// # Safety
/// `weights` and `masks` must be valid for `cells` floats, a multiple of 8 and at most [`TILE`].
#[target_feature(enable = "avx2,fma,f16c")]
pub unsafe fn weigh(weights: *mut f32, masks: *const f32, cells: usize, score: &Score) -> i32 {
    let (scale, softcap, slope) =
        (_mm256_set1_ps(score.scale), _mm256_set1_ps(score.softcap), _mm256_set1_ps(score.slope));
    let forbidden = _mm256_set1_ps(f32::NEG_INFINITY);
    let nothing = _mm256_set1_epi32(NOTHING);
    let mut exponents = [nothing; TILE / 8];
    let mut largest = nothing;
    for (vector, exponents) in exponents[..cells / 8].iter_mut().enumerate() {
        // SAFETY: the caller's contract.
        unsafe {
            let weights = weights.add(8 * vector);
            let mut s = _mm256_mul_ps(_mm256_loadu_ps(weights), scale);
            if score.softcap != 0.0 {
                s = _mm256_mul_ps(softcap, tanh(s));
            }
            let mask = _mm256_loadu_ps(masks.add(8 * vector));
            let t = _mm256_mul_ps(_mm256_fmadd_ps(slope, mask, s), _mm256_set1_ps(std::f32::consts::LOG2_E));
            let t = _mm256_blendv_ps(t, forbidden, _mm256_cmp_ps::<_CMP_EQ_OQ>(mask, forbidden));
            let (whole, power) = split(t);
            // NaN compares as unequal, so a cell whose weight is NaN counts as seen.
            let seen = _mm256_cmp_ps::<_CMP_NEQ_UQ>(t, forbidden);
            *exponents = whole;
            largest =
                _mm256_max_epi32(largest, _mm256_blendv_epi8(nothing, whole, _mm256_castps_si256(seen)));
            _mm256_storeu_ps(weights, _mm256_and_ps(seen, power));
        }
    }
    let largest = _mm_max_epi32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256::<1>(largest));
    let largest = _mm_max_epi32(largest, _mm_shuffle_epi32::<0b01_00_11_10>(largest));
    let largest = _mm_max_epi32(largest, _mm_shuffle_epi32::<0b10_11_00_01>(largest));
    let reference = _mm_cvtsi128_si32(largest);
    for (vector, whole) in exponents[..cells / 8].iter().enumerate() {
        // SAFETY: the caller's contract.
        unsafe {
            let weights = weights.add(8 * vector);
            let power = _mm256_loadu_ps(weights);
            let exponents = _mm256_sub_epi32(*whole, _mm256_set1_epi32(reference));
            let gone = _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(LEAST), exponents));
            let kept = _mm256_andnot_ps(gone, _mm256_cmp_ps::<_CMP_NEQ_OQ>(power, _mm256_setzero_ps()));
            let weight = _mm256_and_ps(kept, shift(power, exponents));
            let number = _mm256_cmp_ps::<_CMP_ORD_Q>(power, power);
            _mm256_storeu_ps(weights, _mm256_blendv_ps(power, weight, number));
        }
    }
    reference
}

/// Adds the weights of each row to its total, one after the other.
///
/// # Safety
/// `weights` must contain [`TILE`] floats for each total.
#[target_feature(enable = "avx2,fma,f16c")]
pub unsafe fn add_weights<'a>(
    weights: *const f32,
    mut totals: impl Iterator<Item = &'a mut f32>,
    cells: usize,
) {
    let mut row = 0;
    // Each addition waits for the previous addition of the same row, but the additions of four rows overlap.
    loop {
        let mut four = [const { None::<&mut f32> }; 4];
        let mut sums = [0f32; 4];
        let mut count = 0;
        for (place, sum) in four.iter_mut().zip(&mut sums) {
            let Some(total) = totals.next() else { break };
            *sum = *total;
            *place = Some(total);
            count += 1;
        }
        // SAFETY: the caller's contract.
        unsafe {
            let weights = weights.add(row * TILE);
            if count == 4 {
                for cell in 0..cells {
                    for (at, sum) in sums.iter_mut().enumerate() {
                        *sum += *weights.add(at * TILE + cell);
                    }
                }
            } else {
                for (at, sum) in sums[..count].iter_mut().enumerate() {
                    for cell in 0..cells {
                        *sum += *weights.add(at * TILE + cell);
                    }
                }
            }
        }
        for (place, sum) in four.into_iter().zip(sums) {
            if let Some(total) = place {
                *total = sum;
            }
        }
        if count < 4 {
            return;
        }
        row += 4;
    }
}

/// Multiplies `count` floats, a multiple of 8, by `factor`.
///
/// # Safety
/// `values` must be valid for `count` floats.
#[target_feature(enable = "avx2,fma,f16c")]
pub unsafe fn scale(values: *mut f32, count: usize, factor: f32) {
    if factor == 1.0 {
        return;
    }
    for at in (0..count).step_by(8) {
        // SAFETY: the caller's contract.
        unsafe {
            let scaled = _mm256_mul_ps(_mm256_loadu_ps(values.add(at)), _mm256_set1_ps(factor));
            _mm256_storeu_ps(values.add(at), scaled);
        }
    }
}

/// Adds the weighted values of all cells to each row's output. If some values are not `finite`, cells of weight 0 are
/// left out, because 0 times infinity is NaN.
///
/// # Safety
/// For each row, `weights` must contain [`TILE`] floats, and `out` `dv` floats. `values` must contain `cells` rows of
/// `dv` floats; `dv` must be a multiple of 8.
#[target_feature(enable = "avx2,fma,f16c")]
pub unsafe fn add_values(
    weights: *const f32,
    rows: usize,
    values: *const f32,
    cells: usize,
    dv: usize,
    finite: bool,
    out: *mut f32,
) {
    if !finite {
        for row in 0..rows {
            for cell in 0..cells {
                // SAFETY: the caller's contract.
                unsafe {
                    let weight = weights.add(row * TILE + cell);
                    if *weight != 0.0 {
                        columns::<1>(weight, values.add(cell * dv), 1, dv, out.add(row * dv));
                    }
                }
            }
        }
        return;
    }
    let mut row = 0;
    while row < rows {
        // SAFETY: the caller's contract.
        unsafe {
            let (weights, out) = (weights.add(row * TILE), out.add(row * dv));
            match block(rows - row) {
                1 => columns::<1>(weights, values, cells, dv, out),
                2 => columns::<2>(weights, values, cells, dv, out),
                _ => columns::<3>(weights, values, cells, dv, out),
            }
        }
        row += block(rows - row);
    }
}

/// Adds the weighted values of all cells to `R` outputs, in parts of 8, 4, 2 and 1 vectors.
///
/// # Safety
/// Same as for [`add_values`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn columns<const R: usize>(
    weights: *const f32,
    values: *const f32,
    cells: usize,
    dv: usize,
    out: *mut f32,
) {
    let mut at = 0;
    macro_rules! parts {
        ($vectors:literal) => {
            while at + 8 * $vectors <= dv {
                // SAFETY: the caller's contract.
                unsafe { part::<R, $vectors>(weights, values.add(at), cells, dv, out.add(at)) };
                at += 8 * $vectors;
            }
        };
    }
    if R == 1 {
        parts!(8);
    }
    parts!(4);
    parts!(2);
    parts!(1);
}

/// # Safety
/// Same as for [`add_values`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn part<const R: usize, const V: usize>(
    weights: *const f32,
    values: *const f32,
    cells: usize,
    dv: usize,
    out: *mut f32,
) {
    // SAFETY: the caller's contract.
    unsafe {
        let mut sums = [[_mm256_setzero_ps(); V]; R];
        for row in 0..R {
            for vector in 0..V {
                sums[row][vector] = _mm256_loadu_ps(out.add(row * dv + 8 * vector));
            }
        }
        for cell in 0..cells {
            let mut weight = [_mm256_setzero_ps(); R];
            for row in 0..R {
                weight[row] = _mm256_broadcast_ss(&*weights.add(row * TILE + cell));
            }
            for vector in 0..V {
                let value = _mm256_loadu_ps(values.add(cell * dv + 8 * vector));
                for row in 0..R {
                    sums[row][vector] = _mm256_fmadd_ps(weight[row], value, sums[row][vector]);
                }
            }
        }
        for row in 0..R {
            for vector in 0..V {
                _mm256_storeu_ps(out.add(row * dv + 8 * vector), sums[row][vector]);
            }
        }
    }
}
