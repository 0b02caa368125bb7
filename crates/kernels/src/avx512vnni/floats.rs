//! Products of float weights.

use std::arch::x86_64::*;

use crate::floats::FloatFormat;
use crate::kernel::{Target, float_format};
use crate::panel::ROWS;

/// Adds the products of `count` elements to the outputs of `C` columns, starting at element `first` of the columns.
///
/// # Safety
/// Same as for [`crate::kernel::Functions::multiply_floats`]; `panel` must point to the first of the elements, and
/// `out` must be valid for `C * 16` floats. The CPU must have the instruction set.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
pub unsafe fn tile<const F: u32, const C: usize>(
    panel: *const u8,
    first: usize,
    count: usize,
    targets: &[Target],
    out: *mut f32,
) {
    // SAFETY: the caller's contract.
    unsafe {
        let columns: [*const f32; C] = std::array::from_fn(|at| targets[at].column.cast::<f32>().add(first));
        let mut sums: [__m512; C] = std::array::from_fn(|at| _mm512_loadu_ps(out.add(ROWS * at)));
        for at in 0..count {
            let weights = load::<F>(panel, ROWS * at);
            for (sum, column) in sums.iter_mut().zip(&columns) {
                *sum = _mm512_fmadd_ps(weights, _mm512_set1_ps(*column.add(at)), *sum);
            }
        }
        for (at, sum) in sums.iter().enumerate() {
            _mm512_storeu_ps(out.add(ROWS * at), *sum);
        }
    }
}

/// Loads sixteen elements, starting at element `at`.
///
/// # Safety
/// `panel` must be valid for these elements.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
unsafe fn load<const F: u32>(panel: *const u8, at: usize) -> __m512 {
    // SAFETY: the caller's contract.
    unsafe {
        match const { float_format(F) } {
            FloatFormat::F32 => _mm512_loadu_ps(panel.cast::<f32>().add(at)),
            FloatFormat::F16 => _mm512_cvtph_ps(_mm256_loadu_si256(panel.cast::<u16>().add(at).cast())),
            FloatFormat::Bf16 => {
                let halves = _mm512_cvtepu16_epi32(_mm256_loadu_si256(panel.cast::<u16>().add(at).cast()));
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(halves))
            }
        }
    }
}
