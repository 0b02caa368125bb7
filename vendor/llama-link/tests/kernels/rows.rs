//! Tests of products of one or several rows with repacked Q4_K and with Q6_K.

use llama_sys as sys;

use crate::Noise;
use crate::activations::quantised;

/// Size in bytes of one Q4_K block of eight interleaved rows: the block scales of the values and of the minima, both
/// scales of each sub-block, and the values.
const Q4_K_BY_8: usize = 16 + 16 + 96 + 1024;

/// Size in bytes of a Q8_K block of 256 values: a scale, the values, and the sum of every 16 values.
const Q8_K: usize = 4 + 256 + 32;

/// Size in bytes of a Q6_K block: the low four bits and the high two bits of the values, the sub-block scales, and
/// the block scale.
const Q6_K: usize = 128 + 64 + 16 + 2;

/// Kernels under test and their references, declared only in ggml-cpu's internal `repack.h` and `quants.h`.
mod kernels {
    use std::ffi::{c_int, c_void};

    pub type Product =
        unsafe extern "C" fn(c_int, *mut f32, usize, *const c_void, *const c_void, c_int, c_int);
    pub type Dot =
        unsafe extern "C" fn(c_int, *mut f32, usize, *const c_void, usize, *const c_void, usize, c_int);

    unsafe extern "C" {
        pub fn ggml_gemv_q4_K_8x8_q8_K(
            n: c_int,
            s: *mut f32,
            bs: usize,
            vx: *const c_void,
            vy: *const c_void,
            nr: c_int,
            nc: c_int,
        );
        pub fn ggml_gemv_q4_K_8x8_q8_K_generic(
            n: c_int,
            s: *mut f32,
            bs: usize,
            vx: *const c_void,
            vy: *const c_void,
            nr: c_int,
            nc: c_int,
        );
        pub fn ggml_quantize_mat_q8_K_4x8(x: *const f32, vy: *mut c_void, k: i64);
        pub fn ggml_gemm_q4_K_8x8_q8_K(
            n: c_int,
            s: *mut f32,
            bs: usize,
            vx: *const c_void,
            vy: *const c_void,
            nr: c_int,
            nc: c_int,
        );
        pub fn ggml_gemm_q4_K_8x8_q8_K_generic(
            n: c_int,
            s: *mut f32,
            bs: usize,
            vx: *const c_void,
            vy: *const c_void,
            nr: c_int,
            nc: c_int,
        );
        pub fn ggml_vec_dot_q6_K_q8_K(
            n: c_int,
            s: *mut f32,
            bs: usize,
            vx: *const c_void,
            bx: usize,
            vy: *const c_void,
            by: usize,
            nrc: c_int,
        );
        pub fn ggml_vec_dot_q6_K_q8_K_generic(
            n: c_int,
            s: *mut f32,
            bs: usize,
            vx: *const c_void,
            bx: usize,
            vy: *const c_void,
            by: usize,
            nrc: c_int,
        );
    }
}

/// Builds row `number` of Q8_K from the values that `value` returns. The scales are 1, 2 and 4, so that adjacent rows
/// and adjacent blocks differ.
fn row_of(blocks: usize, number: usize, value: &mut dyn FnMut() -> i8) -> Vec<u8> {
    let mut row = Vec::new();
    for block in 0..blocks {
        let values: Vec<i8> = (0..256).map(|_| value()).collect();
        row.extend([1.0f32, 2.0, 4.0][(number + block) % 3].to_le_bytes());
        row.extend(values.iter().map(|value| *value as u8));
        for sixteen in values.chunks(16) {
            let sum: i16 = sixteen.iter().map(|value| i16::from(*value)).sum();
            row.extend(sum.to_le_bytes());
        }
    }
    row
}

/// Returns the bytes of an F16 number whose products with integers are exact: 1, -1, 2 or -2. If `weights` is a
/// constant, whose sums get large, only 1 is used.
fn scale(index: usize, weights: Option<u8>) -> [u8; 2] {
    let halves: [u16; 4] = [0x3c00, 0xbc00, 0x4000, 0xc000];
    halves[if weights.is_some() { 0 } else { index % 4 }].to_le_bytes()
}

/// Compares results with the reference. Products of small integers are exact in single precision, in any order of
/// addition. Only the last bits of the largest products may differ.
fn compare(what: &str, found: &[f32], plain: &[f32], exact: bool) {
    for (row, (found, plain)) in found.iter().zip(plain).enumerate() {
        let equal = if exact { found == plain } else { (found - plain).abs() <= 1e-5 * plain.abs() };
        assert!(equal, "{what}: row {row} is {found}, by plain C {plain}");
    }
}

/// Returns bytes for the weights and values of a row: a constant, or noise (`None`).
fn kinds() -> Vec<(Option<u8>, Option<i8>)> {
    let mut kinds = vec![(None, None); 20];
    for weights in [0x00, 0xff, 0x0f, 0xf0, 0x7f, 0x80] {
        for values in [-128, -127, 127, 0, 1] {
            kinds.push((Some(weights), Some(values)));
        }
    }
    kinds
}

/// Builds `columns` rows of Q4_K with `blocks` blocks each, eight rows interleaved, from the constant `weights` or
/// from noise.
fn rearranged(columns: usize, blocks: usize, weights: Option<u8>, byte: &mut dyn FnMut() -> i8) -> Vec<u8> {
    let mut stored = vec![0u8; columns / 8 * blocks * Q4_K_BY_8];
    for (index, block) in stored.chunks_mut(Q4_K_BY_8).enumerate() {
        let (halves, rest) = block.split_at_mut(32);
        for (at, half) in halves.chunks_mut(2).enumerate() {
            // The second eight scales are for the minima, and differ from the scales of the values.
            half.copy_from_slice(&scale(index + at + at / 8, weights));
        }
        rest.fill_with(|| weights.unwrap_or_else(|| byte() as u8));
    }
    stored
}

#[test]
fn one_row_by_rearranged_q4_k_is_that_of_plain_c() {
    let mut noise = Noise(3);
    let mut byte = move || (noise.next() * 128.0).floor() as i8;
    for (weights, values) in kinds() {
        for (blocks, columns) in [(1, 8), (2, 24), (6, 16), (35, 8)] {
            let stored = rearranged(columns, blocks, weights, &mut byte);
            let row = row_of(blocks, 0, &mut || values.unwrap_or_else(&mut byte));
            let product = |kernel: kernels::Product| {
                let mut product = vec![f32::NAN; columns];
                let (n, columns) = (256 * blocks as i32, columns as i32);
                // SAFETY: `stored` has `columns / 8` groups of `blocks` blocks, `row` has `blocks` blocks of Q8_K,
                // and `product` has one number per column.
                unsafe {
                    sys::ggml_cpu_init();
                    kernel(
                        n,
                        product.as_mut_ptr(),
                        0,
                        stored.as_ptr().cast(),
                        row.as_ptr().cast(),
                        1,
                        columns,
                    );
                }
                product
            };
            let found = product(kernels::ggml_gemv_q4_K_8x8_q8_K);
            let plain = product(kernels::ggml_gemv_q4_K_8x8_q8_K_generic);
            let what =
                format!("{blocks} blocks, {columns} columns, weights {weights:02x?}, values {values:?}");
            compare(&what, &found, &plain, weights.is_none() && blocks < 35);
        }
    }
}

/// Interleaves four rows of Q8_K: their scales, then groups of eight values from each row, then groups of four sums
/// from each row.
fn interleaved(rows: &[Vec<u8>; 4]) -> Vec<u8> {
    let mut four = Vec::new();
    for at in 0..rows[0].len() / Q8_K {
        let blocks = rows.each_ref().map(|row| &row[at * Q8_K..][..Q8_K]);
        blocks.iter().for_each(|block| four.extend(&block[..4]));
        for eight in 0..32 {
            blocks.iter().for_each(|block| four.extend(&block[4 + eight * 8..][..8]));
        }
        for sums in 0..4 {
            blocks.iter().for_each(|block| four.extend(&block[4 + 256 + sums * 8..][..8]));
        }
    }
    four
}

/// Covers column counts that are multiples of 16 and others, more than four rows, and results with gaps between rows.
#[test]
fn rows_by_rearranged_q4_k_are_those_of_plain_c() {
    let mut noise = Noise(5);
    let mut byte = move || (noise.next() * 128.0).floor() as i8;
    for (weights, values) in kinds() {
        for (blocks, columns, fours) in [(1, 8, 1), (2, 24, 2), (6, 16, 1), (3, 40, 3), (35, 8, 1)] {
            let stored = rearranged(columns, blocks, weights, &mut byte);
            let mut row = |number| row_of(blocks, number, &mut || values.unwrap_or_else(&mut byte));
            let rows: Vec<[Vec<u8>; 4]> =
                (0..fours).map(|four| [0, 1, 2, 3].map(|at| row(4 * four + at))).collect();
            let all: Vec<u8> = rows.iter().flat_map(interleaved).collect();
            let apart = columns + 3;
            let product = |kernel: kernels::Product, rows: &[u8], number: usize| {
                let mut product = vec![f32::NAN; apart * number];
                let (n, number, columns) = (256 * blocks as i32, number as i32, columns as i32);
                // SAFETY: `stored` has `columns / 8` groups of `blocks` blocks, and `rows` has `blocks` blocks of
                // Q8_K per row. `product` has one number per column and row, with `apart` numbers from one row to the
                // next.
                unsafe {
                    sys::ggml_cpu_init();
                    let (stored, rows) = (stored.as_ptr().cast(), rows.as_ptr().cast());
                    kernel(n, product.as_mut_ptr(), apart, stored, rows, number, columns);
                }
                product
            };
            let found = product(kernels::ggml_gemm_q4_K_8x8_q8_K, &all, 4 * fours);
            let plain = product(kernels::ggml_gemm_q4_K_8x8_q8_K_generic, &all, 4 * fours);
            for (at, row) in rows.iter().flatten().enumerate() {
                let what = format!(
                    "{blocks} blocks, {columns} columns, row {at}, weights {weights:02x?}, values {values:?}"
                );
                let (found, beyond) = found[at * apart..][..apart].split_at(columns);
                compare(&what, found, &plain[at * apart..][..columns], weights.is_none() && blocks < 35);
                assert!(beyond.iter().all(|value| value.is_nan()), "{what}: written beyond its end");
                // Product of the same row, computed alone.
                let alone = product(kernels::ggml_gemv_q4_K_8x8_q8_K, row, 1);
                compare(&what, found, &alone[..columns], weights.is_none() && blocks < 35);
            }
        }
    }
}

/// Uses activations quantised from floats and scales that are not powers of two, so that the last bit depends on the
/// order of additions.
#[test]
fn a_row_has_the_same_product_alone_and_among_others() {
    const BLOCKS: usize = 6;
    const COLUMNS: usize = 40;
    let mut noise = Noise(6);
    let mut stored = rearranged(COLUMNS, BLOCKS, None, &mut || (noise.next() * 128.0).floor() as i8);
    for block in stored.chunks_mut(Q4_K_BY_8) {
        // Scales from 0.0625 to 0.125.
        block[..32].chunks_mut(2).for_each(|half| {
            half.copy_from_slice(&(0x2c00 + (noise.next().abs() * 1024.0) as u16).to_le_bytes());
        });
    }
    let rows: Vec<f32> = noise.row(4 * 256 * BLOCKS);
    let (mut four, mut among) = (vec![0u8; 4 * BLOCKS * Q8_K], vec![f32::NAN; 4 * COLUMNS]);
    let length = 256 * BLOCKS;
    let columns = COLUMNS as i32;
    // SAFETY: `four` has room for `BLOCKS` blocks of four rows, `stored` has `COLUMNS / 8` groups of `BLOCKS` blocks,
    // and `among` has one number per row and column.
    let info = unsafe {
        sys::ggml_cpu_init();
        kernels::ggml_quantize_mat_q8_K_4x8(rows.as_ptr(), four.as_mut_ptr().cast(), length as i64);
        let (weights, rows) = (stored.as_ptr().cast(), four.as_ptr().cast());
        kernels::ggml_gemm_q4_K_8x8_q8_K(
            length as i32,
            among.as_mut_ptr(),
            COLUMNS,
            weights,
            rows,
            4,
            columns,
        );
        std::ffi::CStr::from_ptr(sys::llama_print_system_info()).to_string_lossy().into_owned()
    };
    // A prefix built by Anneal contains the patched kernels; the default tree contains llama.cpp's kernels.
    let ours = std::env::var_os("ANNEAL_LLAMA_PREFIX").is_some();
    let vnni = ours && info.contains("AVX512_VNNI = 1");
    for (at, row) in rows.chunks(length).enumerate() {
        let ([row, _], mut alone) = (quantised(row), vec![f32::NAN; COLUMNS]);
        // SAFETY: `stored` is unchanged, `row` has `BLOCKS` blocks, and `alone` has one number per column.
        unsafe {
            let (weights, row) = (stored.as_ptr().cast(), row.as_ptr().cast());
            kernels::ggml_gemv_q4_K_8x8_q8_K(length as i32, alone.as_mut_ptr(), 0, weights, row, 1, columns);
        }
        for (column, (among, alone)) in among[at * COLUMNS..].iter().zip(&alone).enumerate() {
            // Without VNNI, both kernels are llama.cpp's, which add in different orders.
            let equal = if vnni { among.to_bits() == alone.to_bits() } else { (among - alone).abs() < 1e-3 };
            assert!(
                equal && alone.is_finite(),
                "row {at}, column {column}: {among} among others, alone {alone}"
            );
        }
    }
}

#[test]
fn one_row_by_q6_k_is_that_of_plain_c() {
    let mut noise = Noise(4);
    let mut byte = move || (noise.next() * 128.0).floor() as i8;
    for (weights, values) in kinds() {
        for blocks in [1, 2, 6, 35] {
            let mut stored = vec![0u8; blocks * Q6_K];
            for (index, block) in stored.chunks_mut(Q6_K).enumerate() {
                block.fill_with(|| weights.unwrap_or_else(|| byte() as u8));
                block[Q6_K - 2..].copy_from_slice(&scale(index, weights));
            }
            let row = row_of(blocks, 0, &mut || values.unwrap_or_else(&mut byte));
            let product = |kernel: kernels::Dot| {
                let mut product = f32::NAN;
                let n = 256 * blocks as i32;
                // SAFETY: `stored` and `row` have `blocks` blocks each.
                unsafe {
                    sys::ggml_cpu_init();
                    kernel(n, &raw mut product, 0, stored.as_ptr().cast(), 0, row.as_ptr().cast(), 0, 1);
                }
                [product]
            };
            let found = product(kernels::ggml_vec_dot_q6_K_q8_K);
            let plain = product(kernels::ggml_vec_dot_q6_K_q8_K_generic);
            let what = format!("{blocks} blocks, weights {weights:02x?}, values {values:?}");
            compare(&what, &found, &plain, weights.is_none() && blocks < 6);
        }
    }
}
