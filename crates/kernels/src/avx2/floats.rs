//! Products of float weights.

use std::arch::x86_64::*;
use std::mem::MaybeUninit;

use crate::floats::FloatFormat;
use crate::kernel::{Target, float_format, parts, store, zeros};
use crate::panel::ROWS;

/// Number of elements of a row that are multiplied by all columns before the next elements: at most 32 KB of weights.
const CHUNK: usize = 512;

/// Multiplies a panel of float weights.
///
/// # Safety
/// Same as for [`crate::kernel::Functions::multiply_floats`]. The CPU must have AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
pub unsafe fn multiply<const F: u32>(panel: *const u8, k: usize, rows: usize, targets: &[Target]) {
    let bytes = const { float_format(F).bytes() };
    let mut outputs = [MaybeUninit::uninit(); super::COLUMNS];
    let out = zeros(&mut outputs, targets.len());
    for first in (0..k).step_by(CHUNK) {
        let count = CHUNK.min(k - first);
        // SAFETY: the panel has all elements; columns and outputs belong to it.
        unsafe {
            let panel = panel.add(first * ROWS * bytes);
            // A tile has at most six columns: twelve sums, two weights and one activation fill the registers.
            parts!(targets.len(), [1, 2, 3, 4, 5, 6], |start, C| {
                tile::<F, C>(panel, first, count, &targets[start..], out.add(ROWS * start))
            });
        }
    }
    // SAFETY: the caller allows `rows` outputs.
    unsafe { store(targets, out, 0..rows) };
}

/// Adds the products of `count` elements to the outputs of `C` columns, starting at element `first` of the columns.
///
/// # Safety
/// Same as for [`multiply`]; `panel` must point to the first of the elements, and `out` must be valid for `C * 16`
/// floats.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn tile<const F: u32, const C: usize>(
    panel: *const u8,
    first: usize,
    count: usize,
    targets: &[Target],
    out: *mut f32,
) {
    // SAFETY: the caller's contract.
    unsafe {
        let mut sums = [[_mm256_setzero_ps(); 2]; C];
        let mut columns = [std::ptr::null::<f32>(); C];
        for column in 0..C {
            columns[column] = targets[column].column.cast::<f32>().add(first);
            for half in 0..2 {
                sums[column][half] = _mm256_loadu_ps(out.add(ROWS * column + 8 * half));
            }
        }
        for at in 0..count {
            let mut weights = [_mm256_setzero_ps(); 2];
            for half in 0..2 {
                weights[half] = load::<F>(panel, ROWS * at + 8 * half);
            }
            for column in 0..C {
                let x = _mm256_broadcast_ss(&*columns[column].add(at));
                for half in 0..2 {
                    sums[column][half] = _mm256_fmadd_ps(weights[half], x, sums[column][half]);
                }
            }
        }
        for column in 0..C {
            for half in 0..2 {
                _mm256_storeu_ps(out.add(ROWS * column + 8 * half), sums[column][half]);
            }
        }
    }
}

/// Loads eight elements, starting at element `at`.
///
/// # Safety
/// `panel` must be valid for these elements.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn load<const F: u32>(panel: *const u8, at: usize) -> __m256 {
    // SAFETY: the caller's contract.
    unsafe {
        match const { float_format(F) } {
            FloatFormat::F32 => _mm256_loadu_ps(panel.cast::<f32>().add(at)),
            FloatFormat::F16 => _mm256_cvtph_ps(_mm_loadu_si128(panel.cast::<u16>().add(at).cast())),
            FloatFormat::Bf16 => {
                let halves = _mm256_cvtepu16_epi32(_mm_loadu_si128(panel.cast::<u16>().add(at).cast()));
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(halves))
            }
        }
    }
}
