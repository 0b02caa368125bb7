//! The kernels that our patches change, against plain arithmetic: shapes that no model of the gate has.

use std::ffi::c_void;

// What the declarations name.
use llama_link as _;
use llama_sys as sys;

unsafe extern "C" {
    /// The plain C that the kernels of a CPU are to equal; declared in ggml's own `ggml-quants.h` alone.
    fn quantize_row_q8_K_ref(x: *const f32, y: *mut c_void, k: i64);
}

/// Bytes of a block of 256 values: a scale, the values, their sums by sixteen.
const Q8_K: usize = 4 + 256 + 32;

/// Eight rows of Q4_K, one block each: their scales, their scales of minima, both of each sub-block, the values.
#[cfg(target_arch = "x86_64")]
const Q4_K_BY_8: usize = 16 + 16 + 96 + 1024;

/// A block of Q6_K: four and two bits of the values, their scales, the block's.
#[cfg(target_arch = "x86_64")]
const Q6_K: usize = 128 + 64 + 16 + 2;

/// Numbers in [-1, 1), the same in every run (Knuth's linear congruential generator, MMIX).
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    fn row(&mut self, length: usize) -> Vec<f32> {
        (0..length).map(|_| self.next()).collect()
    }
}

/// As the CPU quantises, and as plain C does.
fn quantised(row: &[f32]) -> [Vec<u8>; 2] {
    let mut both = [vec![0u8; row.len() / 256 * Q8_K], vec![0u8; row.len() / 256 * Q8_K]];
    let length = row.len() as i64;
    // SAFETY: both write `row.len() / 256` blocks; every CPU type that others convert to has from_float.
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
    // A block of zeros has no scale; the largest value may be negative, be there twice with both signs, stand at
    // either end, or be so small or so large that a scale leaves the normal numbers.
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
    // Halves, which rounding decides: 127 steps of the largest value and what lies between two.
    rows.push((0..256).map(|i| (i as f32 - 128.0) / 2.0).collect());
    for (index, row) in rows.iter().enumerate() {
        let [of_cpu, plain] = quantised(row);
        assert!(of_cpu == plain, "row {index}: the CPU's blocks are not plain C's");
    }
}

/// A batch of products as attention computes them: of `heads` heads of keys or values, each shared by `shared` heads
/// of queries.
#[derive(Clone, Copy, Debug)]
struct Shape {
    /// Type of the keys or values.
    of: sys::ggml_type,
    /// Values of a row.
    k: usize,
    /// Rows.
    m: usize,
    heads: usize,
    shared: usize,
    /// Tokens.
    n: usize,
    /// Whether the heads of a row lie side by side, as keys do.
    side_by_side: bool,
    threads: i32,
}

/// The product of `shape` as llama.cpp computes it, with its largest distance from that in double precision, as a share
/// of the sum of all products' sizes.
fn worst(shape: Shape, noise: &mut Noise) -> f64 {
    let Shape { of, k, m, heads, shared, n, side_by_side, threads } = shape;
    let (left, right) = (noise.row(k * m * heads), noise.row(k * n * heads * shared));
    // SAFETY: the context outlives the tensors, whose data are in it and as large as their shapes say; the rounded
    // values are as many as the plain ones.
    unsafe {
        let params =
            sys::ggml_init_params { mem_size: 64 << 20, mem_buffer: std::ptr::null_mut(), no_alloc: false };
        let context = sys::ggml_init(params);
        let (m_, k_, heads_) = (m as i64, k as i64, heads as i64);
        let stored = if side_by_side {
            sys::ggml_new_tensor_3d(context, of, k_, heads_, m_)
        } else {
            sys::ggml_new_tensor_3d(context, of, k_, m_, heads_)
        };
        let b = sys::ggml_new_tensor_3d(context, sys::GGML_TYPE_F32, k_, n as i64, heads_ * shared as i64);
        std::ptr::copy_nonoverlapping(right.as_ptr(), (*b).data.cast(), right.len());
        let traits = &*sys::ggml_get_type_traits(of);
        let round = traits.from_float_ref.expect("it is converted to");
        let widen = traits.to_float.expect("it is converted from");
        let row_size = sys::ggml_row_size(of, k_);
        round(left.as_ptr(), (*stored).data.cast(), (k * m * heads) as i64);
        let rounded = |values: &[f32], as_type: sys::ggml_type| -> Vec<f32> {
            let mut narrow = vec![0u8; sys::ggml_row_size(as_type, values.len() as i64)];
            let mut wide = vec![0.0f32; values.len()];
            round(values.as_ptr(), narrow.as_mut_ptr().cast(), values.len() as i64);
            widen(narrow.as_ptr().cast(), wide.as_mut_ptr(), values.len() as i64);
            wide
        };
        let (a_wide, b_wide) = (rounded(&left, of), rounded(&right, of));
        let a = if side_by_side { sys::ggml_permute(context, stored, 0, 2, 1, 3) } else { stored };
        assert_eq!((*a).nb[1], if side_by_side { row_size * heads } else { row_size });
        let product = sys::ggml_mul_mat(context, a, b);
        let graph = sys::ggml_new_graph(context);
        sys::ggml_build_forward_expand(graph, product);
        assert_eq!(sys::ggml_graph_compute_with_ctx(context, graph, threads), sys::GGML_STATUS_SUCCESS);

        let found = std::slice::from_raw_parts((*product).data.cast::<f32>(), m * n * heads * shared);
        let mut worst = 0.0f64;
        for (at, &value) in found.iter().enumerate() {
            assert!(value.is_finite(), "{shape:?}: {value} at {at}");
            let (row, token, head) = (at % m, at / m % n, at / m / n);
            let (kv, place) = (head / shared, |row: usize, kv: usize| match side_by_side {
                true => (row * heads + kv) * k,
                false => (kv * m + row) * k,
            });
            let pairs = a_wide[place(row, kv)..].iter().zip(&b_wide[(head * n + token) * k..]).take(k);
            let (sum, size) = pairs.fold((0.0, 0.0), |(sum, size), (&a, &b)| {
                let product = f64::from(a) * f64::from(b);
                (sum + product, size + product.abs())
            });
            worst = worst.max((f64::from(value) - sum).abs() / size);
        }
        sys::ggml_free(context);
        worst
    }
}

/// Lengths that no vector divides, numbers of rows that no tile divides, one head, one token and several.
#[test]
fn products_of_shared_heads_are_those_of_plain_arithmetic() {
    let mut noise = Noise(2);
    for of in [sys::GGML_TYPE_F16, sys::GGML_TYPE_BF16] {
        for (k, m) in
            [(128, 256), (64, 33), (72, 64), (80, 34), (40, 4), (8, 20), (100, 8), (256, 128), (33, 3)]
        {
            for (heads, shared, n) in [(2, 6, 1), (1, 7, 1), (3, 2, 1), (2, 1, 1), (2, 4, 5)] {
                for (side_by_side, threads) in [(true, 1), (true, 3), (false, 2)] {
                    let shape = Shape { of, k, m, heads, shared, n, side_by_side, threads };
                    // Single precision loses some 2^-24 a step; a kernel that reads too much or the wrong head is
                    // off by shares of one.
                    let worst = worst(shape, &mut noise);
                    assert!(worst < 1e-5, "{shape:?}: off by {worst}");
                }
            }
        }
    }
}

/// What the products with one row are to equal, and they: declared in ggml-cpu's own `repack.h` and `quants.h` alone.
#[cfg(target_arch = "x86_64")]
mod one_row {
    use std::ffi::{c_int, c_void};

    pub type Gemv = unsafe extern "C" fn(c_int, *mut f32, usize, *const c_void, *const c_void, c_int, c_int);
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

/// A row of Q8_K whose scale is one, of what `value` says.
#[cfg(target_arch = "x86_64")]
fn row_of(blocks: usize, value: &mut dyn FnMut() -> i8) -> Vec<u8> {
    let mut row = Vec::new();
    for _ in 0..blocks {
        let values: Vec<i8> = (0..256).map(|_| value()).collect();
        row.extend(1.0f32.to_le_bytes());
        row.extend(values.iter().map(|value| *value as u8));
        for sixteen in values.chunks(16) {
            let sum: i16 = sixteen.iter().map(|value| i16::from(*value)).sum();
            row.extend(sum.to_le_bytes());
        }
    }
    row
}

/// The bytes of a half whose products with whole numbers are exact: 1, -1, 2 or -2. Only 1 where sums get large.
#[cfg(target_arch = "x86_64")]
fn scale(index: usize, weights: Option<u8>) -> [u8; 2] {
    let halves: [u16; 4] = [0x3c00, 0xbc00, 0x4000, 0xc000];
    halves[if weights.is_some() { 0 } else { index % 4 }].to_le_bytes()
}

/// Products of whole numbers are exact in single precision while they are small, in whatever order; of the largest
/// ones the last bits are lost, and no more.
#[cfg(target_arch = "x86_64")]
fn compare(what: &str, found: &[f32], plain: &[f32], exact: bool) {
    for (row, (found, plain)) in found.iter().zip(plain).enumerate() {
        let equal = if exact { found == plain } else { (found - plain).abs() <= 1e-5 * plain.abs() };
        assert!(equal, "{what}: row {row} is {found}, by plain C {plain}");
    }
}

/// Bytes of weights and values of a row: all of one kind, or noise.
#[cfg(target_arch = "x86_64")]
fn kinds() -> Vec<(Option<u8>, Option<i8>)> {
    let mut kinds = vec![(None, None); 20];
    for weights in [0x00, 0xff, 0x0f, 0xf0, 0x7f, 0x80] {
        for values in [-128, -127, 127, 0, 1] {
            kinds.push((Some(weights), Some(values)));
        }
    }
    kinds
}

#[test]
#[cfg(target_arch = "x86_64")]
fn one_row_by_rearranged_q4_k_is_that_of_plain_c() {
    let mut noise = Noise(3);
    let mut byte = move || (noise.next() * 128.0).floor() as i8;
    for (weights, values) in kinds() {
        for (blocks, columns) in [(1, 8), (2, 24), (6, 16), (35, 8)] {
            let mut stored = vec![0u8; columns / 8 * blocks * Q4_K_BY_8];
            for (index, block) in stored.chunks_mut(Q4_K_BY_8).enumerate() {
                let (halves, rest) = block.split_at_mut(32);
                for (at, half) in halves.chunks_mut(2).enumerate() {
                    half.copy_from_slice(&scale(index + at, weights));
                }
                rest.fill_with(|| weights.unwrap_or_else(|| byte() as u8));
            }
            let row = row_of(blocks, &mut || values.unwrap_or_else(&mut byte));
            let product = |kernel: one_row::Gemv| {
                let mut product = vec![f32::NAN; columns];
                let (n, columns) = (256 * blocks as i32, columns as i32);
                // SAFETY: `stored` holds `columns / 8` groups of `blocks` blocks, `row` as many of Q8_K, and `product`
                // a number for each column.
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
            let found = product(one_row::ggml_gemv_q4_K_8x8_q8_K);
            let plain = product(one_row::ggml_gemv_q4_K_8x8_q8_K_generic);
            let what =
                format!("{blocks} blocks, {columns} columns, weights {weights:02x?}, values {values:?}");
            compare(&what, &found, &plain, weights.is_none());
        }
    }
}

#[test]
#[cfg(target_arch = "x86_64")]
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
            let row = row_of(blocks, &mut || values.unwrap_or_else(&mut byte));
            let product = |kernel: one_row::Dot| {
                let mut product = f32::NAN;
                let n = 256 * blocks as i32;
                // SAFETY: `stored` and `row` hold `blocks` blocks each.
                unsafe {
                    sys::ggml_cpu_init();
                    kernel(n, &raw mut product, 0, stored.as_ptr().cast(), 0, row.as_ptr().cast(), 0, 1);
                }
                [product]
            };
            let found = product(one_row::ggml_vec_dot_q6_K_q8_K);
            let plain = product(one_row::ggml_vec_dot_q6_K_q8_K_generic);
            let what = format!("{blocks} blocks, weights {weights:02x?}, values {values:?}");
            compare(&what, &found, &plain, weights.is_none() && blocks < 35);
        }
    }
}

/// Attention of a batch to cells that sequences share.
#[derive(Clone, Copy, Debug)]
struct Attention {
    /// Type of the keys and values.
    of: sys::ggml_type,
    /// Values of a key, and of a value.
    k: usize,
    cells: usize,
    /// Tokens.
    n: usize,
    /// Sequences: cell `c` is of `c % sequences`, token `t` of `t % sequences`.
    sequences: usize,
    /// These cells are of all sequences: tiles of which all is wanted beside those of which little is.
    common: (usize, usize),
    /// ALiBi's largest bias, and the limit of a score; 0 where there is none.
    bias: f32,
    softcap: f32,
    threads: i32,
}

impl Attention {
    const HEADS: usize = 4;
    const SHARED: usize = 2;

    /// What is added to a score; every seventh token sees nothing at all.
    fn mask(&self, token: usize, cell: usize) -> f32 {
        let common = (self.common.0..self.common.1).contains(&cell);
        let own = common || cell % self.sequences == token % self.sequences;
        if !own || token % 7 == 3 { f32::NEG_INFINITY } else { -((cell % 5) as f32) / 4.0 }
    }

    /// The largest distance of what llama.cpp computes from attention in double precision.
    fn worst(self, noise: &mut Noise) -> f64 {
        let Attention { of, k, cells, n, bias, softcap, threads, .. } = self;
        let (heads, kv_heads) = (Self::HEADS, Self::HEADS / Self::SHARED);
        let scale = 1.0 / (k as f32).sqrt();
        let (queries, keys, values) =
            (noise.row(k * n * heads), noise.row(k * cells * kv_heads), noise.row(k * cells * kv_heads));
        let (k_, n_, cells_) = (k as i64, n as i64, cells as i64);
        // SAFETY: the context outlives the tensors, whose data are in it and as large as their shapes say.
        let (found, keys, values) = unsafe {
            let params = sys::ggml_init_params {
                mem_size: 64 << 20,
                mem_buffer: std::ptr::null_mut(),
                no_alloc: false,
            };
            let context = sys::ggml_init(params);
            let q = sys::ggml_new_tensor_3d(context, sys::GGML_TYPE_F32, k_, n_, heads as i64);
            std::ptr::copy_nonoverlapping(queries.as_ptr(), (*q).data.cast(), queries.len());
            let traits = &*sys::ggml_get_type_traits(of);
            let stored = |plain: &[f32]| {
                let tensor = sys::ggml_new_tensor_3d(context, of, k_, cells_, kv_heads as i64);
                let mut wide = plain.to_vec();
                match (traits.from_float_ref, traits.to_float) {
                    (Some(round), Some(widen)) if of != sys::GGML_TYPE_F32 => {
                        round(plain.as_ptr(), (*tensor).data.cast(), plain.len() as i64);
                        widen((*tensor).data, wide.as_mut_ptr(), plain.len() as i64);
                    }
                    _ => std::ptr::copy_nonoverlapping(plain.as_ptr(), (*tensor).data.cast(), plain.len()),
                }
                (tensor, wide)
            };
            let ((k_tensor, keys), (v_tensor, values)) = (stored(&keys), stored(&values));
            let mask = sys::ggml_new_tensor_2d(context, sys::GGML_TYPE_F16, cells_, n_);
            let plain: Vec<f32> = (0..n * cells).map(|at| self.mask(at / cells, at % cells)).collect();
            sys::ggml_fp32_to_fp16_row(plain.as_ptr(), (*mask).data.cast(), plain.len() as i64);
            let out = sys::ggml_flash_attn_ext(context, q, k_tensor, v_tensor, mask, scale, bias, softcap);
            let graph = sys::ggml_new_graph(context);
            sys::ggml_build_forward_expand(graph, out);
            assert_eq!(sys::ggml_graph_compute_with_ctx(context, graph, threads), sys::GGML_STATUS_SUCCESS);
            let found = std::slice::from_raw_parts((*out).data.cast::<f32>(), k * heads * n).to_vec();
            sys::ggml_free(context);
            (found, keys, values)
        };
        let mut worst = 0.0f64;
        for (token, head) in (0..n).flat_map(|token| (0..heads).map(move |head| (token, head))) {
            let kv = head / Self::SHARED;
            let query = &queries[(head * n + token) * k..][..k];
            // Four heads: 2^-2, 2^-4, … of a bias of 8.
            let slope =
                if bias > 0.0 { (-f64::from(bias) / heads as f64 * (head + 1) as f64).exp2() } else { 1.0 };
            let scores: Vec<f64> = (0..cells)
                .map(|cell| {
                    let key = &keys[(kv * cells + cell) * k..][..k];
                    let dot: f64 = query.iter().zip(key).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
                    let dot = dot * f64::from(scale);
                    let cap = f64::from(softcap);
                    let score = if cap > 0.0 { cap * (dot / cap).tanh() } else { dot };
                    score + slope * f64::from(self.mask(token, cell))
                })
                .collect();
            let weights: Vec<f64> = scores.iter().map(|score| score.exp()).collect();
            let sum: f64 = weights.iter().sum();
            for at in 0..k {
                let seen = (0..cells).filter(|&cell| weights[cell] > 0.0);
                let expected: f64 = seen
                    .map(|cell| weights[cell] * f64::from(values[(kv * cells + cell) * k + at]))
                    .sum::<f64>()
                    / if sum == 0.0 { 1.0 } else { sum };
                let value = found[(token * heads + head) * k + at];
                assert!(value.is_finite(), "{self:?}: {value}");
                worst = worst.max((f64::from(value) - expected).abs());
            }
        }
        worst
    }
}

/// Tiles of which all, some, few and no products are wanted, rows alone and in tiles, ends that no tile divides.
#[test]
fn attention_to_scattered_cells_is_that_of_plain_arithmetic() {
    let mut noise = Noise(3);
    for of in [sys::GGML_TYPE_F16, sys::GGML_TYPE_F32] {
        let none = (0, 0);
        for (n, cells, sequences, common) in [
            (1, 70, 3, none),
            (1, 600, 64, none),
            (5, 256, 5, none),
            (63, 200, 20, none),
            (64, 256, 1, none),
            (64, 320, 4, none),
            (64, 256, 64, none),
            (70, 190, 9, none),
            (130, 300, 64, none),
            (64, 330, 100, none),
            // A tile of which little is wanted before one, and before a part of one, of which all is; the other way round.
            (64, 232, 64, (128, 232)),
            (64, 232, 64, (64, 160)),
        ] {
            for (k, bias, softcap, threads) in
                [(64, 0.0, 0.0, 1), (128, 0.0, 0.0, 2), (80, 8.0, 0.0, 2), (64, 0.0, 5.0, 3)]
            {
                let attention = Attention { of, k, cells, n, sequences, common, bias, softcap, threads };
                let worst = attention.worst(&mut noise);
                // A row alone rounds the query and its sum to F16, where keys and values are.
                let most = if of == sys::GGML_TYPE_F16 && n < 64 { 5e-3 } else { 1e-5 };
                assert!(worst < most, "{attention:?}: off by {worst}");
            }
        }
    }
}
