//! Compares products of float weights, through the table that ggml calls, with the exact rule.

#![cfg(target_arch = "x86_64")]

mod common;

use common::team::{get_row, multiply, pack, plain, unpack};
use common::{Random, available, floats, with_each_set};
use kernels::floats::{FLOATS, FloatFormat};
use kernels::instruction_set::InstructionSet;
use kernels::reference::dot_floats;

fn packed(set: InstructionSet, format: FloatFormat, k: usize, count: usize, bytes: &[u8]) -> Vec<u8> {
    let packed = pack(set, format.ggml(), k, count, bytes);
    let size = k * format.bytes() * count.next_multiple_of(16);
    assert_eq!(packed.len(), size, "no second copy, only whole panels");
    packed
}

#[test]
fn every_shape_and_thread_count_gives_the_exact_bits() {
    let mut random = Random::new(31);
    for (set, format) in with_each_set(FLOATS) {
        for (k, count, columns) in [(8, 1, 1), (64, 17, 2), (520, 33, 5), (1032, 100, 7), (512, 40, 130)] {
            let (bytes, values) = floats(format, k * count, &mut random);
            let packed = packed(set, format, k, count, &bytes);
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
    for (set, format) in with_each_set(FLOATS) {
        let (k, count) = (72, 21);
        let (bytes, values) = floats(format, k * count, &mut random);
        let packed = packed(set, format, k, count, &bytes);
        let restored = unpack(set, format.ggml(), k, count, &packed, bytes.len());
        let row = get_row(set, format.ggml(), k, &packed, 20);
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
        let packed = packed(set, FloatFormat::F32, k, count, &bytes);
        let x = vec![1f32; k];
        let mut out = vec![0f32; count];
        multiply(set, &plain(FloatFormat::F32.ggml(), k, count, &packed, &x, &mut out), 1);
        assert!(out[0].is_nan() && out[1] == f32::INFINITY && out[2] == 16.0, "{set:?}: {out:?}");
    }
}
