//! Tests of attention over KV cells of several sequences.

use llama_sys as sys;

use crate::Noise;

/// Shape of a batch whose attention covers cells of several sequences.
#[derive(Clone, Copy, Debug)]
struct Attention {
    /// Type of the keys and values.
    of: sys::ggml_type,
    /// Number of elements in a key and in a value.
    k: usize,
    cells: usize,
    /// Number of tokens.
    n: usize,
    /// Number of sequences. Cell `c` belongs to sequence `c % sequences`, token `t` to sequence `t % sequences`.
    sequences: usize,
    /// Range of cells that belong to all sequences, so that fully used tiles are next to sparsely used tiles.
    common: (usize, usize),
    /// Maximum ALiBi bias; 0 for no bias.
    bias: f32,
    softcap: f32,
    threads: i32,
}

impl Attention {
    const HEADS: usize = 4;
    const SHARED: usize = 2;

    /// Returns the mask value that is added to a score. Every seventh token attends to no cells.
    fn mask(&self, token: usize, cell: usize) -> f32 {
        let common = (self.common.0..self.common.1).contains(&cell);
        let own = common || cell % self.sequences == token % self.sequences;
        if !own || token % 7 == 3 { f32::NEG_INFINITY } else { -((cell % 5) as f32) / 4.0 }
    }

    /// Returns the largest difference between llama.cpp's result and attention in double precision.
    fn worst(self, noise: &mut Noise) -> f64 {
        let Attention { of, k, cells, n, bias, softcap, threads, .. } = self;
        let (heads, kv_heads) = (Self::HEADS, Self::HEADS / Self::SHARED);
        let scale = 1.0 / (k as f32).sqrt();
        let (queries, keys, values) =
            (noise.row(k * n * heads), noise.row(k * cells * kv_heads), noise.row(k * cells * kv_heads));
        let (k_, n_, cells_) = (k as i64, n as i64, cells as i64);
        // SAFETY: the context outlives the tensors and contains their data, which have the sizes of the tensors'
        // shapes.
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
            // The slopes of the four heads are 2^-2, 2^-4, …, for a maximum bias of 8.
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

/// Covers tiles that need all, some, few or none of their products, single rows, single tiles, and sizes that are not
/// multiples of a tile.
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
            // A sparsely used tile precedes a fully used tile, which precedes a partial tile that is fully used; and
            // the reverse order.
            (64, 232, 64, (128, 232)),
            (64, 232, 64, (64, 160)),
        ] {
            for (k, bias, softcap, threads) in
                [(64, 0.0, 0.0, 1), (128, 0.0, 0.0, 2), (80, 8.0, 0.0, 2), (64, 0.0, 5.0, 3)]
            {
                let attention = Attention { of, k, cells, n, sequences, common, bias, softcap, threads };
                let worst = attention.worst(&mut noise);
                // For a single row, the query and the sum are rounded to F16 if keys and values are F16.
                let most = if of == sys::GGML_TYPE_F16 && n < 64 { 5e-3 } else { 1e-5 };
                assert!(worst < most, "{attention:?}: off by {worst}");
            }
        }
    }
}
