//! Tests of matrix products in which several query heads share a KV head.

use llama_sys as sys;

use crate::Noise;

/// Batch of products of the kind that attention computes: `heads` heads of keys or values, each shared by `shared`
/// query heads.
#[derive(Clone, Copy, Debug)]
struct Shape {
    /// Type of the keys or values.
    of: sys::ggml_type,
    /// Number of elements in a row.
    k: usize,
    /// Number of rows.
    m: usize,
    heads: usize,
    shared: usize,
    /// Number of tokens.
    n: usize,
    /// True if the heads of a row are adjacent in memory, as they are for keys.
    side_by_side: bool,
    threads: i32,
}

/// Computes the product of `shape` with llama.cpp. Returns the largest difference from the result in double
/// precision, as a fraction of the sum of the absolute products.
fn worst(shape: Shape, noise: &mut Noise) -> f64 {
    let Shape { of, k, m, heads, shared, n, side_by_side, threads } = shape;
    let (left, right) = (noise.row(k * m * heads), noise.row(k * n * heads * shared));
    // SAFETY: the context outlives the tensors and contains their data, which have the sizes of the tensors' shapes.
    // There are as many rounded values as original ones.
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

/// Covers lengths that no vector size divides, row counts that no tile size divides, and one or several heads and
/// tokens.
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
                    // Single precision loses about 2^-24 per step. A kernel that reads too many values or the wrong
                    // head has a large relative error.
                    let worst = worst(shape, &mut noise);
                    assert!(worst < 1e-5, "{shape:?}: off by {worst}");
                }
            }
        }
    }
}
