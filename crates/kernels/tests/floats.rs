//! Products of float weights, through the table that ggml calls, against the exact rule.

#![cfg(target_arch = "x86_64")]

mod common;

use common::team::{kernels, multiply, plain};
use common::{Random, available, floats};
use kernels::floats::{FLOATS, FloatFormat};
use kernels::instruction_set::InstructionSet;
use kernels::reference::dot_floats;

fn pack(set: InstructionSet, format: FloatFormat, k: usize, count: usize, bytes: &[u8]) -> Vec<u8> {
    let size = (kernels(set).packed_size)(format.ggml(), k as i64, count as i64);
    assert_eq!(size, k * format.bytes() * count.next_multiple_of(16), "no second copy, only whole panels");
    let mut packed = vec![0xff; size];
    // SAFETY: both buffers have the sizes of the matrix.
    unsafe {
        (kernels(set).pack)(format.ggml(), k as i64, count as i64, bytes.as_ptr(), packed.as_mut_ptr())
    };
    packed
}

#[test]
fn every_shape_and_thread_count_gives_the_exact_bits() {
    let mut random = Random::new(31);
    for (set, format) in available().flat_map(|set| FLOATS.map(|format| (set, format))) {
        for (k, count, columns) in [(8, 1, 1), (64, 17, 2), (520, 33, 5), (1032, 100, 7), (512, 40, 130)] {
            let (bytes, values) = floats(format, k * count, &mut random);
            let packed = pack(set, format, k, count, &bytes);
            let x: Vec<f32> = (0..k * columns).map(|_| random.unit()).collect();
            let expected: Vec<u32> = x
                .chunks(k)
                .flat_map(|x| values.chunks(k).map(|row| dot_floats(row, x).to_bits()).collect::<Vec<_>>())
                .collect();
            for threads in [1, 2, 3, 8] {
                let mut out = vec![f32::NAN; count * columns];
                multiply(set, &plain(format.ggml(), k, count, &packed, &x, &mut out), threads);
                let bits: Vec<u32> = out.iter().map(|x| x.to_bits()).collect();
                assert_eq!(
                    bits, expected,
                    "{set:?}, {format:?}, {k} x {count}, {columns} columns, {threads} threads"
                );
            }
        }
    }
}

#[test]
fn a_packed_matrix_is_restored() {
    let mut random = Random::new(32);
    for (set, format) in available().flat_map(|set| FLOATS.map(|format| (set, format))) {
        let (k, count) = (72, 21);
        let (bytes, values) = floats(format, k * count, &mut random);
        let packed = pack(set, format, k, count, &bytes);
        let mut restored = vec![0; bytes.len()];
        let mut row = vec![0f32; k];
        // SAFETY: the buffers have the sizes of the matrix and of a row.
        unsafe {
            (kernels(set).unpack)(
                format.ggml(),
                k as i64,
                count as i64,
                packed.as_ptr(),
                restored.as_mut_ptr(),
            );
            (kernels(set).get_row)(format.ggml(), k as i64, packed.as_ptr(), 20, row.as_mut_ptr());
        }
        assert_eq!(restored, bytes, "{set:?}, {format:?}");
        assert_eq!(row, values[20 * k..], "{set:?}, {format:?}");
    }
}

#[test]
fn what_is_no_number_or_infinite_stays_so() {
    let (k, count) = (16, 3);
    let mut values = vec![1f32; k * count];
    (values[3], values[k + 5]) = (f32::NAN, f32::INFINITY);
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    for set in available() {
        let packed = pack(set, FloatFormat::F32, k, count, &bytes);
        let x = vec![1f32; k];
        let mut out = vec![0f32; count];
        multiply(set, &plain(FloatFormat::F32.ggml(), k, count, &packed, &x, &mut out), 1);
        assert!(out[0].is_nan() && out[1] == f32::INFINITY && out[2] == 16.0, "{set:?}: {out:?}");
    }
}
