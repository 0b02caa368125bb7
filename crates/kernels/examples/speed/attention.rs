//! Speed of attention on one thread.

use std::ffi::{c_int, c_void};

use kernels::attention::Attention;
use kernels::cache::MASKED;
use kernels::ffi::table;
use kernels::instruction_set::InstructionSet;
use kernels::team::Team;

/// Shapes of models: name, length of a head, query heads, heads of the cache.
const SHAPES: [(&str, usize, usize, usize); 4] = [
    ("Qwen2.5-1.5B", 128, 12, 2),
    ("Llama-1B", 64, 32, 8),
    ("Gemma 3 270M", 256, 4, 1),
    ("one head", 128, 8, 8),
];

unsafe extern "C" fn barrier(_pool: *mut c_void) {}

unsafe extern "C" fn chunk_set(pool: *mut c_void, value: c_int) {
    // SAFETY: `pool` is a counter.
    unsafe { *pool.cast() = value };
}

unsafe extern "C" fn chunk_add(pool: *mut c_void, value: c_int) -> c_int {
    let counter: *mut c_int = pool.cast();
    // SAFETY: `pool` is a counter of this thread.
    unsafe {
        *counter += value;
        *counter - value
    }
}

/// Prints the multiply-adds per second for a token after 4,096 cells, and for 256 prompt tokens after 2,048 cells.
pub fn print() {
    println!(
        "instructions | attention | GMAC/s: 1 token, 4,096 cells | GB/s of the cache | GMAC/s: 256 tokens, 2,304 cells"
    );
    let sets = InstructionSet::ALL.into_iter().filter_map(|set| Some((set, table(set)?)));
    let cases = sets.flat_map(|set| SHAPES.map(|shape| (set, shape)));
    for ((set, table), (name, length, heads, kv_heads)) in cases {
        let speed = |tokens: usize, cells: usize| {
            let q: Vec<f32> = (0..tokens * heads * length).map(|at| (at as f32).sin()).collect();
            let cache: Vec<u16> =
                (0..cells * kv_heads * length).map(|at| 0x3000 | (at % 999) as u16).collect();
            let mask: Vec<u16> = (0..tokens * cells)
                .map(|at| if at % cells + tokens <= cells + at / cells { 0 } else { MASKED })
                .collect();
            let mut out = vec![0f32; q.len()];
            let (row, queries) = (2 * length, [4 * length * heads, 4 * length, 4 * q.len()]);
            let cells_stride = [row * kv_heads, row, 0];
            let op = Attention {
                dk: length as i64,
                dv: length as i64,
                heads: heads as i64,
                kv_heads: kv_heads as i64,
                tokens: tokens as i64,
                cells: cells as i64,
                streams: 1,
                q: q.as_ptr(),
                q_stride: queries,
                k: cache.as_ptr().cast(),
                k_stride: cells_stride,
                v: cache.as_ptr().cast(),
                v_stride: cells_stride,
                mask: mask.as_ptr(),
                mask_stride: [2 * cells, 0],
                sinks: std::ptr::null(),
                out: out.as_mut_ptr(),
                out_stride: queries,
                k_kind: 1,
                v_kind: 1,
                scale: 0.1,
                max_bias: 0.0,
                softcap: 0.0,
            };
            // SAFETY: the operation is valid, and one thread is the whole team.
            let best = unsafe {
                let size = (table.attention_work_size)(&op, 1);
                let mut work = vec![0u64; size.div_ceil(8)];
                let mut counter: c_int = 0;
                let team = Team {
                    ith: 0,
                    nth: 1,
                    work: work.as_mut_ptr().cast(),
                    work_size: size,
                    pool: (&raw mut counter).cast(),
                    barrier,
                    chunk_set,
                    chunk_add,
                };
                super::time(1, || (table.attend)(&team, &op)).0
            };
            let pairs: usize = (0..tokens).map(|token| cells - tokens + token + 1).sum();
            let macs = (2 * length * heads * pairs) as f64;
            (macs / best / 1e9, (2 * row * kv_heads * cells) as f64 / best / 1e9)
        };
        let (one, bytes) = speed(1, 4096);
        println!("{set:?} | {name} | {one:.1} | {bytes:.1} | {:.1}", speed(256, 2304).0);
    }
}
