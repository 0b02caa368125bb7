//! Products by teams of threads, through the table that ggml calls.

#![cfg(target_arch = "x86_64")]

mod common;

use common::guarded::Guarded;
use common::team::{get_row, kernels, multiply, pack, plain, unpack};
use common::{Random, available, rows, with_each_set};
use kernels::activations::ColumnLayout;
use kernels::format::{FORMATS, Format};
use kernels::instruction_set::InstructionSet;
use kernels::panel::{ROWS, panel_bytes};
use kernels::product::Product;
use kernels::reference::dot;

/// Packs a matrix of `count` rows in the file's layout.
fn packed(set: InstructionSet, format: Format, k: usize, count: usize, rows: &[u8]) -> Vec<u8> {
    let packed = pack(set, format.ggml(), k, count, rows);
    assert_eq!(packed.len(), panel_bytes(format, k).unwrap() * count.div_ceil(ROWS));
    packed
}

/// Returns the result of the exact rule for row `row` and the activations `x`.
fn exact(format: Format, packed: &[u8], row: usize, x: &[f32]) -> f32 {
    let panel = panel_bytes(format, x.len()).unwrap();
    let mut column = vec![0u64; ColumnLayout::of(InstructionSet::Avx2, format, x.len()).bytes / 8];
    let blocks = x.len() / format.block_len();
    // SAFETY: the column has the layout's size, and is filled before it is read.
    unsafe {
        kernels::activations::quantise(
            InstructionSet::Avx2,
            format,
            x,
            0,
            blocks,
            column.as_mut_ptr().cast(),
        );
        dot(
            InstructionSet::Avx2,
            format,
            &packed[row / ROWS * panel..][..panel],
            row % ROWS,
            x.len(),
            column.as_ptr().cast(),
        )
    }
}

#[test]
fn every_thread_count_and_shape_gives_the_exact_bits() {
    let mut random = Random::new(11);
    for (set, format) in with_each_set(FORMATS) {
        let k = 512;
        for (count, columns) in [(1, 1), (15, 2), (16, 3), (33, 4), (100, 1), (100, 11), (33, 130)] {
            let rows = rows(format, k, count, &mut random);
            let packed = packed(set, format, k, count, &rows);
            let x: Vec<f32> = (0..k * columns).map(|_| random.unit()).collect();
            let expected: Vec<u32> = x
                .chunks(k)
                .flat_map(|x| {
                    (0..count).map(|row| exact(format, &packed, row, x).to_bits()).collect::<Vec<_>>()
                })
                .collect();
            for threads in [1, 2, 3, 8] {
                let mut out = vec![f32::NAN; count * columns];
                multiply(set, &plain(format.ggml(), k, count, &packed, &x, &mut out), threads);
                let bits: Vec<u32> = out.iter().map(|x| x.to_bits()).collect();
                assert_eq!(
                    bits, expected,
                    "{set:?}, {format:?}, {count} rows, {columns} columns, {threads} threads"
                );
            }
        }
    }
}

/// Weights, activations and output end or begin at a page without access.
#[test]
fn nothing_is_read_or_written_beyond_a_buffer() {
    let mut random = Random::new(15);
    for (set, format) in with_each_set(FORMATS) {
        let k = 768;
        for (count, columns) in [(5, 1), (16, 2), (33, 3), (5, 4), (20, 11)] {
            let rows = rows(format, k, count, &mut random);
            let packed = packed(set, format, k, count, &rows);
            let x: Vec<f32> = (0..k * columns).map(|_| random.unit()).collect();
            let mut out = vec![f32::NAN; count * columns];
            multiply(set, &plain(format.ggml(), k, count, &packed, &x, &mut out), 2);
            let empty = vec![f32::NAN; out.len()];
            for place in ["end", "start"] {
                let (weights, activations, output) = match place {
                    "end" => (Guarded::at_end(&packed), Guarded::at_end(&x), Guarded::at_end(&empty)),
                    _ => (Guarded::at_start(&packed), Guarded::at_start(&x), Guarded::at_start(&empty)),
                };
                let plain = plain(format.ggml(), k, count, &packed, &x, &mut vec![0.0; out.len()]);
                let product = Product {
                    packed: weights.pointer(),
                    x: activations.pointer(),
                    out: output.pointer(),
                    ..plain
                };
                multiply(set, &product, 2);
                // SAFETY: the output has as many floats as `out`.
                let found: &[f32] = unsafe { std::slice::from_raw_parts(output.pointer(), out.len()) };
                let equal = found.iter().zip(&out).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(equal, "{set:?}, {format:?}, {count} rows, {columns} columns, at the {place}");
            }
        }
    }
}

#[test]
fn columns_may_have_gaps_and_more_dimensions() {
    available().for_each(columns_with_gaps);
}

fn columns_with_gaps(set: InstructionSet) {
    let mut random = Random::new(12);
    let (format, k, count) = (Format::Q4K, 256, 20);
    let rows = rows(format, k, count, &mut random);
    let packed = packed(set, format, k, count, &rows);
    let n = [2usize, 3, 2];
    let (gap, out_gap) = (k + 8, count + 3);
    let x: Vec<f32> = (0..12 * gap).map(|_| random.unit()).collect();
    let mut out = vec![f32::NAN; 12 * out_gap];
    let mut product = plain(format.ggml(), k, count, &packed, &x, &mut out);
    product.n = n.map(|n| n as i64);
    product.x_stride = [4 * gap, 8 * gap, 24 * gap];
    product.out_stride = [4 * out_gap, 8 * out_gap, 24 * out_gap];
    multiply(set, &product, 2);
    for column in 0..12 {
        for row in 0..out_gap {
            let found = out[column * out_gap + row];
            if row < count {
                let expected = exact(format, &packed, row, &x[column * gap..][..k]);
                assert_eq!(found.to_bits(), expected.to_bits(), "column {column}, row {row}");
            } else {
                assert!(found.is_nan(), "the gap behind column {column} was written");
            }
        }
    }
}

#[test]
fn experts_multiply_the_columns_of_their_tokens() {
    let mut random = Random::new(13);
    let (k, count, experts, used, tokens) = (256, 40, 5, 2, 23);
    for (set, format) in with_each_set([Format::Q4K, Format::Q8_0, Format::Q6K]) {
        // One column for each token, or one for each of its experts.
        for columns in [1, used] {
            let rows = rows(format, k, count * experts, &mut random);
            let matrices: Vec<Vec<u8>> =
                rows.chunks(rows.len() / experts).map(|rows| packed(set, format, k, count, rows)).collect();
            let all = matrices.concat();
            let x: Vec<f32> = (0..k * columns * tokens).map(|_| random.unit()).collect();
            // The fifth expert gets no column.
            let ids: Vec<i32> = (0..used * tokens).map(|at| (at * 7 % 4) as i32).collect();
            for threads in [1, 2, 5] {
                let mut out = vec![f32::NAN; count * used * tokens];
                let mut product = plain(format.ggml(), k, count, &all, &x, &mut out);
                product.experts = experts as i64;
                product.expert_stride = matrices[0].len();
                product.n = [columns as i64, tokens as i64, 1];
                product.x_stride = [4 * k, 4 * k * columns, 4 * x.len()];
                product.out_stride = [4 * count, 4 * count * used, 0];
                (product.ids, product.used, product.ids_stride) = (ids.as_ptr(), used as i64, [4, 4 * used]);
                multiply(set, &product, threads);
                for (at, out) in out.chunks(count).enumerate() {
                    let (token, id) = (at / used, at % used);
                    let x = &x[k * (token * columns + id % columns)..][..k];
                    for (row, out) in out.iter().enumerate() {
                        let expected = exact(format, &matrices[ids[at] as usize], row, x);
                        assert_eq!(
                            out.to_bits(),
                            expected.to_bits(),
                            "{set:?}, {format:?}, token {token}, expert {id}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn shapes_without_a_kernel_have_no_packed_size() {
    let size = kernels(InstructionSet::Avx2).packed_size;
    assert_eq!(size(Format::Q4K.ggml(), 128, 16), 0, "half a super-block");
    assert_eq!(size(Format::Q8_0.ggml(), 48, 16), 0, "a block and a half");
    assert_eq!(size(Format::Q8_0.ggml(), 640, 0), 0, "no rows");
    assert_eq!(size(Format::Q8_0.ggml(), -32, 16), 0, "a negative length");
    assert_eq!(size(0, 12, 16), 0, "F32 with half a vector");
    assert_eq!(size(999, 256, 16), 0, "an unknown type");
    assert!(size(Format::Q5_0.ggml(), 640, 7) > 0);
}

#[test]
fn a_packed_matrix_is_restored() {
    let mut random = Random::new(14);
    for (set, format) in with_each_set(FORMATS) {
        let (k, count) = (512, 37);
        let rows = rows(format, k, count, &mut random);
        let packed = packed(set, format, k, count, &rows);
        let restored = unpack(set, format.ggml(), k, count, &packed, rows.len());
        let values = get_row(set, format.ggml(), k, &packed, 33);
        assert_eq!(restored, rows, "{set:?}, {format:?}");
        let block = format.decode(&rows[33 * rows.len() / count..]);
        let mut expected = vec![0f32; format.block_len()];
        format.dequantise(&block, &mut expected);
        assert_eq!(values[..expected.len()], expected, "{set:?}, {format:?}");
    }
}
