//! Tests of the quantisation of activations to 8 bits.

use std::ffi::c_void;

use llama_sys as sys;

use crate::Noise;

unsafe extern "C" {
    /// Reference in plain C that the CPU's kernels must match, declared only in ggml's internal `ggml-quants.h`.
    fn quantize_row_q8_K_ref(x: *const f32, y: *mut c_void, k: i64);
}

/// Size in bytes of a Q8_K block of 256 values: a scale, the values, and the sum of every 16 values.
const Q8_K: usize = 4 + 256 + 32;

/// Quantises `row` with the CPU's kernel and with the plain C reference.
pub fn quantised(row: &[f32]) -> [Vec<u8>; 2] {
    let mut both = [vec![0u8; row.len() / 256 * Q8_K], vec![0u8; row.len() / 256 * Q8_K]];
    let length = row.len() as i64;
    // SAFETY: both functions write `row.len() / 256` blocks. Every type that the CPU backend converts to has
    // `from_float`.
    unsafe {
        sys::ggml_cpu_init();
        let of_cpu =
            (*sys::ggml_get_type_traits_cpu(sys::GGML_TYPE_Q8_K)).from_float.expect("Q8_K is converted to");
        of_cpu(row.as_ptr(), both[0].as_mut_ptr().cast(), length);
        quantize_row_q8_K_ref(row.as_ptr(), both[1].as_mut_ptr().cast(), length);
    }
    both
}

#[test]
fn activations_are_quantised_bit_for_bit_as_in_plain_c() {
    let mut noise = Noise(1);
    let mut rows: Vec<Vec<f32>> = (0..200).map(|_| noise.row(512)).collect();
    // Special cases: a block of zeros has no scale. The largest value may be negative, occur with both signs, or be
    // at either end of the block. It may also be so small or so large that the scale is not a normal number.
    rows.push(vec![0.0; 512]);
    rows.push(vec![-0.0; 256]);
    for (at, value) in [(0, -3.0), (255, -3.0), (255, 3.0), (31, 1e30), (7, -1e30)] {
        let mut row = noise.row(256);
        row[at] = value;
        rows.push(row);
    }
    for (first, second) in [(2.0, -2.0), (-2.0, 2.0)] {
        let mut row = noise.row(256);
        (row[100], row[200]) = (first, second);
        rows.push(row);
    }
    for scale in [1e-30f32, 1e-20, 1e20, 1e30] {
        rows.push(noise.row(256).into_iter().map(|value| value * scale).collect());
    }
    // Rounding ties: multiples of the scale's step, and values halfway between two multiples.
    rows.push((0..256).map(|i| (i as f32 - 128.0) / 2.0).collect());
    for (index, row) in rows.iter().enumerate() {
        let [of_cpu, plain] = quantised(row);
        assert!(of_cpu == plain, "row {index}: the CPU's blocks are not plain C's");
    }
}
