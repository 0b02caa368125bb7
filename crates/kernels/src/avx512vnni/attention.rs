//! Attention to one tile of cells of an F16 cache. Keys and values go directly from the cache to registers.
//!
//! At most six rows are computed together. With eight cells, or 64 elements of a value, their sums fill 24 of 32
//! registers.

use std::arch::x86_64::*;
use std::ops::Range;

use crate::avx2::attention::TILE;
use crate::cache::{CacheFormat, CacheRows};
use crate::kernel::parts;

/// True if the kernels of this module support the keys and values of `rows`.
pub fn takes(rows: &CacheRows) -> bool {
    rows.format == CacheFormat::F16
}

/// Bytes of rows that will be needed soon.
struct Ahead<'a> {
    rows: &'a CacheRows<'a>,
    /// Bytes of each row.
    bytes: Range<usize>,
}

impl<'a> Ahead<'a> {
    /// Returns `count` elements of each row, starting at element `at` of the part.
    fn of(rows: &'a CacheRows<'a>, at: usize, count: usize) -> Self {
        let start = rows.part.start + at;
        let end = rows.part.end.min(start + count).max(start);
        Self { rows, bytes: rows.format.bytes(start)..rows.format.bytes(end) }
    }

    /// Prefetches the bytes of row `row`, if the row exists.
    ///
    /// # Safety
    /// The rows must be valid.
    #[inline(always)]
    unsafe fn prefetch(&self, row: usize) {
        let Some(cell) = self.rows.cells.get(row) else { return };
        // SAFETY: the caller's contract.
        let from = unsafe { self.rows.base.add(*cell as usize * self.rows.stride) };
        let mut at = self.bytes.start;
        while at < self.bytes.end {
            // SAFETY: every x86-64 CPU has the instruction, and the address may be any address.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(from.wrapping_add(at).cast()) };
            at += 64;
        }
    }
}

/// Writes the products of queries and keys, `out[TILE * row + cell]`, for the number of cells rounded up to a
/// multiple of eight. Also prefetches the rows `ahead`.
///
/// # Safety
/// `q` must contain `rows` rows as long as a key, a multiple of 8; keys and rows ahead must be valid, and [`takes`]
/// must be true for the keys. The CPU must have the instruction set.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub unsafe fn scores(q: *const f32, rows: usize, keys: &CacheRows, ahead: &CacheRows, out: *mut f32) {
    let dk = keys.part.len();
    // SAFETY: the caller's contract.
    unsafe {
        let ahead = Ahead::of(ahead, 0, ahead.part.len());
        for (group, cells) in keys.cells.chunks(8).enumerate() {
            (8 * group..8 * group + 8).for_each(|row| ahead.prefetch(row));
            // The mask forbids the padding after the last cell.
            let place: [*const u16; 8] = std::array::from_fn(|at| {
                let cell = *cells.get(at).unwrap_or(&cells[0]) as usize;
                keys.base.add(cell * keys.stride).cast::<u16>().add(keys.part.start)
            });
            parts!(rows, [1, 2, 3, 4, 5, 6], |row, R| {
                products::<R>(q.add(row * dk), &place, dk, out.add(row * TILE + 8 * group))
            });
        }
    }
}

/// Writes the products of `R` queries with eight keys. A register contains eight sums for each of the cells `at` and
/// `at + 4`.
///
/// # Safety
/// Same as for [`scores`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
unsafe fn products<const R: usize>(q: *const f32, keys: &[*const u16; 8], dk: usize, out: *mut f32) {
    let mut sums = [[_mm512_setzero_ps(); 4]; R];
    // SAFETY: the caller's contract.
    unsafe {
        for at in (0..dk).step_by(8) {
            let keys: [__m512; 4] = std::array::from_fn(|cell| {
                let first = _mm_loadu_si128(keys[cell].add(at).cast());
                let second = _mm_loadu_si128(keys[cell + 4].add(at).cast());
                _mm512_cvtph_ps(_mm256_inserti128_si256::<1>(_mm256_castsi128_si256(first), second))
            });
            for (row, sums) in sums.iter_mut().enumerate() {
                let query = _mm512_broadcast_f32x8(_mm256_loadu_ps(q.add(row * dk + at)));
                for (sum, key) in sums.iter_mut().zip(&keys) {
                    *sum = _mm512_fmadd_ps(query, *key, *sum);
                }
            }
        }
        for (row, sums) in sums.iter().enumerate() {
            let four = pairs(pairs(sums[0], sums[1]), pairs(sums[2], sums[3]));
            // Quarters 0 and 1 belong to the first four cells, quarters 2 and 3 to the others.
            let both = _mm512_add_ps(four, _mm512_shuffle_f32x4::<0b10_11_00_01>(four, four));
            let both = _mm512_shuffle_f32x4::<0b10_00_10_00>(both, both);
            _mm256_storeu_ps(out.add(row * TILE), _mm512_castps512_ps256(both));
        }
    }
}

/// Returns the sums of neighbouring lanes in each quarter: two of `a`, then two of `b`.
#[target_feature(enable = "avx512f")]
#[inline]
fn pairs(a: __m512, b: __m512) -> __m512 {
    _mm512_add_ps(_mm512_shuffle_ps::<0b10_00_10_00>(a, b), _mm512_shuffle_ps::<0b11_01_11_01>(a, b))
}

/// Adds the weighted values of all cells to each row's output. If a sum would become NaN, cells of weight 0 are
/// left out, because 0 times infinity is NaN. Also prefetches the rows `ahead`.
///
/// # Safety
/// For each row, `weights` must contain [`TILE`] floats, and `out` as many floats as a value, a multiple of 8; values
/// and rows ahead must be valid, and [`takes`] must be true for the values. The CPU must have the instruction set.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub unsafe fn add_values(
    weights: *const f32,
    rows: usize,
    values: &CacheRows,
    ahead: &CacheRows,
    out: *mut f32,
) {
    let dv = values.part.len();
    // SAFETY: the caller's contract.
    unsafe {
        parts!(rows, [1, 2, 3, 4, 5, 6], |row, R| {
            let (weights, out) = (weights.add(row * TILE), out.add(row * dv));
            let mut at = 0;
            while at < dv {
                let count = if at + 64 <= dv { 64 } else { 16.min(dv - at) };
                let ahead = (row == 0).then(|| Ahead::of(ahead, at, count));
                if count == 64 {
                    part::<R, 4>(weights, values, ahead, at, count, out);
                } else {
                    part::<R, 1>(weights, values, ahead, at, count, out);
                }
                at += count;
            }
        });
    }
}

/// Adds `count` weighted elements of each value, starting at element `at` of the part, to `R` outputs.
///
/// # Safety
/// Same as for [`add_values`]; `count` must be `16 * V`, or 8 if `V` is 1.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
unsafe fn part<const R: usize, const V: usize>(
    weights: *const f32,
    values: &CacheRows,
    ahead: Option<Ahead>,
    at: usize,
    count: usize,
    out: *mut f32,
) {
    let dv = values.part.len();
    let mask = if V == 1 && count < 16 { 0xff } else { 0xffff };
    // SAFETY: the caller's contract.
    unsafe {
        let out = |row: usize, vector: usize| out.add(row * dv + at + 16 * vector);
        let value = |cell: usize, vector: usize| {
            let cell = values.base.add(values.cells[cell] as usize * values.stride).cast::<u16>();
            let bits = _mm256_maskz_loadu_epi16(mask, cell.add(values.part.start + at + 16 * vector).cast());
            _mm512_cvtph_ps(bits)
        };
        let before = || -> [[__m512; V]; R] {
            std::array::from_fn(|row| {
                std::array::from_fn(|vector| _mm512_maskz_loadu_ps(mask, out(row, vector)))
            })
        };
        let mut sums = before();
        for cell in 0..values.cells.len() {
            if let Some(ahead) = &ahead {
                ahead.prefetch(cell);
            }
            let value: [__m512; V] = std::array::from_fn(|vector| value(cell, vector));
            for (row, sums) in sums.iter_mut().enumerate() {
                let weight = _mm512_set1_ps(*weights.add(row * TILE + cell));
                for (sum, value) in sums.iter_mut().zip(&value) {
                    *sum = _mm512_fmadd_ps(weight, *value, *sum);
                }
            }
        }
        let no_number = |sum: &__m512| _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(*sum, *sum) != 0;
        if sums.iter().flatten().any(no_number) {
            sums = before();
            for cell in 0..values.cells.len() {
                for (row, sums) in sums.iter_mut().enumerate() {
                    let weight = *weights.add(row * TILE + cell);
                    if weight != 0.0 {
                        for (vector, sum) in sums.iter_mut().enumerate() {
                            *sum = _mm512_fmadd_ps(_mm512_set1_ps(weight), value(cell, vector), *sum);
                        }
                    }
                }
            }
        }
        for (row, sums) in sums.iter().enumerate() {
            for (vector, sum) in sums.iter().enumerate() {
                _mm512_mask_storeu_ps(out(row, vector), mask, *sum);
            }
        }
    }
}
