//! Compares attention by teams of threads, through the table that ggml calls, with the exact rule.

#![cfg(target_arch = "x86_64")]

mod common;

use common::guarded::Guarded;
use common::team::{compute, kernels};
use common::{Random, available, floats, rows};
use kernels::attention::Attention;
use kernels::cache::{CacheFormat, MASKED};
use kernels::floats::FLOATS;
use kernels::format::{Format, f16_to_f32};
use kernels::instruction_set::InstructionSet;
use kernels::reference::{Score, attend};

/// Numbers of `enum ggml_type`.
const F32: u32 = 0;
const F16: u32 = 1;
const Q4_0: u32 = 2;
const Q8_0: u32 = 8;
const BF16: u32 = 30;

/// Rows of a cache and their values in F32.
#[derive(Clone)]
struct Cache {
    bytes: Vec<u8>,
    values: Vec<f32>,
    row_bytes: usize,
}

impl Cache {
    /// Draws `count` rows of `length` elements.
    fn random(kind: u32, length: usize, count: usize, random: &mut Random) -> Self {
        let (bytes, mut values);
        match kind {
            Q4_0 | Q8_0 => {
                let format = Format::of_ggml(kind).unwrap();
                bytes = rows(format, length, count, random);
                values = Vec::new();
                for block in bytes.chunks_exact(format.block_bytes()) {
                    let mut out = [0f32; 32];
                    format.dequantise(&format.decode(block), &mut out);
                    values.extend(out);
                }
            }
            _ => {
                let format = FLOATS.into_iter().find(|format| format.ggml() == kind).expect("a float format");
                (bytes, values) = floats(format, length * count, random);
            }
        }
        let row_bytes = bytes.len() / count;
        Self { bytes, values, row_bytes }
    }
}

/// Sizes and data of an operation. Caches and queries are contiguous: stream, cell, head, element.
#[derive(Clone)]
struct Case {
    shape: Shape,
    max_bias: f32,
    softcap: f32,
    q: Vec<f32>,
    k: Cache,
    v: Cache,
    mask: Option<Vec<u16>>,
    sinks: Option<Vec<f32>>,
}

/// Heads and sizes of a case.
#[derive(Clone, Copy, Debug)]
struct Shape {
    dk: usize,
    dv: usize,
    heads: usize,
    kv_heads: usize,
    tokens: usize,
    cells: usize,
    streams: usize,
    kinds: [u32; 2],
}

const SHAPE: Shape =
    Shape { dk: 64, dv: 64, heads: 6, kv_heads: 2, tokens: 3, cells: 300, streams: 1, kinds: [F16, F16] };

/// A case dereferences to its shape, for access to the sizes.
impl std::ops::Deref for Case {
    type Target = Shape;

    fn deref(&self) -> &Shape {
        &self.shape
    }
}

impl Case {
    /// Draws a case in which the tokens are the last of a sequence.
    fn causal(shape: Shape, seed: u64) -> Self {
        let Shape { dk, dv, heads, kv_heads, tokens, cells, streams, kinds } = shape;
        let mut random = Random::new(seed);
        let q = (0..dk * heads * tokens * streams).map(|_| 4.0 * random.unit()).collect();
        let k = Cache::random(kinds[0], dk, cells * kv_heads * streams, &mut random);
        let v = Cache::random(kinds[1], dv, cells * kv_heads * streams, &mut random);
        let allowed = |token: usize, cell: usize| cell + tokens <= cells + token;
        let mask = mask(tokens, cells, streams, allowed);
        let (mask, sinks) = (Some(mask), None);
        Self { shape, max_bias: 0.0, softcap: 0.0, q, k, v, mask, sinks }
    }

    fn scale(&self) -> f32 {
        1.0 / (self.dk as f32).sqrt()
    }

    fn operation(&self, out: &mut [f32]) -> Attention {
        let [k, v] = [&self.k, &self.v].map(|cache| {
            let row = cache.row_bytes;
            [row * self.kv_heads, row, row * self.kv_heads * self.cells]
        });
        let per_token =
            |length: usize| [4 * length * self.heads, 4 * length, 4 * length * self.heads * self.tokens];
        Attention {
            dk: self.dk as i64,
            dv: self.dv as i64,
            heads: self.heads as i64,
            kv_heads: self.kv_heads as i64,
            tokens: self.tokens as i64,
            cells: self.cells as i64,
            streams: self.streams as i64,
            q: self.q.as_ptr(),
            q_stride: per_token(self.dk),
            k: self.k.bytes.as_ptr(),
            k_stride: k,
            v: self.v.bytes.as_ptr(),
            v_stride: v,
            mask: self.mask.as_ref().map_or(std::ptr::null(), |mask| mask.as_ptr()),
            mask_stride: [2 * self.cells, 2 * self.cells * self.tokens],
            sinks: self.sinks.as_ref().map_or(std::ptr::null(), |sinks| sinks.as_ptr()),
            out: out.as_mut_ptr(),
            out_stride: per_token(self.dv),
            k_kind: self.kinds[0],
            v_kind: self.kinds[1],
            scale: self.scale(),
            max_bias: self.max_bias,
            softcap: self.softcap,
        }
    }

    /// Computes the case with `threads` threads and each instruction set, which must give the same bits.
    fn compute(&self, threads: usize) -> Vec<f32> {
        let mut all = available().map(|set| (set, self.compute_with(set, threads)));
        let (_, first) = all.next().expect("this CPU has AVX2");
        for (set, out) in all {
            assert!(
                bits(&out) == bits(&first),
                "{set:?} and AVX2 give different bits with {threads} threads"
            );
        }
        first
    }

    /// Computes the case with `threads` threads. Each operand and the output are between pages without access.
    fn compute_with(&self, set: InstructionSet, threads: usize) -> Vec<f32> {
        let mut out = vec![f32::NAN; self.dv * self.heads * self.tokens * self.streams];
        let q = guarded(&self.q, threads);
        let (k, v) = (guarded(&self.k.bytes, threads), guarded(&self.v.bytes, threads));
        let mask = self.mask.as_ref().map(|mask| guarded(mask, threads));
        let sinks = self.sinks.as_ref().map(|sinks| guarded(sinks, threads));
        let output = guarded(&out, threads);
        let pointer =
            |memory: &Option<Guarded>| memory.as_ref().map_or(std::ptr::null_mut(), Guarded::pointer::<u8>);
        let op = Attention {
            q: q.pointer(),
            k: k.pointer(),
            v: v.pointer(),
            mask: pointer(&mask).cast(),
            sinks: pointer(&sinks).cast(),
            out: output.pointer(),
            ..self.operation(&mut out)
        };
        // SAFETY: the operation is valid.
        let size = unsafe { (kernels(set).attention_work_size)(&op, threads as i32) };
        assert!(size > 0, "no kernel computes the case");
        // SAFETY: the operation is valid, and the output has as many floats as `out`.
        unsafe {
            compute(threads, size, kernels(set).attend, &op);
            std::ptr::copy_nonoverlapping(output.pointer(), out.as_mut_ptr(), out.len());
        }
        out
    }

    /// Computes the case by the exact rule.
    fn exact(&self) -> Vec<f32> {
        let mut all = Vec::new();
        for row in 0..self.streams * self.tokens * self.heads {
            let (token, head) = (row / self.heads, row % self.heads);
            let (stream, kv_head) = (token / self.tokens, head / (self.heads / self.kv_heads));
            let cells: Vec<(f32, &[f32], &[f32])> = (0..self.cells)
                .map(|cell| {
                    let at = (stream * self.cells + cell) * self.kv_heads + kv_head;
                    let mask =
                        self.mask.as_ref().map_or(0.0, |mask| f16_to_f32(mask[token * self.cells + cell]));
                    (
                        mask,
                        &self.k.values[at * self.dk..][..self.dk],
                        &self.v.values[at * self.dv..][..self.dv],
                    )
                })
                .collect();
            let score = Score::of(self.scale(), self.max_bias, self.softcap, head, self.heads);
            let sink = self.sinks.as_ref().map(|sinks| sinks[head]);
            let mut out = vec![f32::NAN; self.dv];
            attend(&self.q[row * self.dk..][..self.dk], &cells, sink, &score, &mut out);
            all.extend(out);
        }
        all
    }

    #[track_caller]
    fn check(&self, what: &str) {
        let expected = bits(&self.exact());
        for threads in [1, 2, 3, 8] {
            assert!(bits(&self.compute(threads)) == expected, "{what}, {threads} threads");
        }
    }
}

/// Copies `items` into memory between pages without access: to its start if the number of threads is even, otherwise to
/// its end.
fn guarded<T: Copy>(items: &[T], threads: usize) -> Guarded {
    if threads.is_multiple_of(2) { Guarded::at_start(items) } else { Guarded::at_end(items) }
}

fn bits(values: &[f32]) -> Vec<u32> {
    // All NaNs are treated as equal.
    values.iter().map(|value| if value.is_nan() { u32::MAX } else { value.to_bits() }).collect()
}

fn mask(tokens: usize, cells: usize, streams: usize, allowed: impl Fn(usize, usize) -> bool) -> Vec<u16> {
    let all = (0..streams * tokens * cells).map(|at| (at / cells % tokens, at % cells));
    all.map(|(token, cell)| if allowed(token, cell) { 0 } else { MASKED }).collect()
}

#[test]
fn every_format_gives_the_exact_bits() {
    for kinds in [[F32, F32], [F16, F16], [BF16, BF16], [Q8_0, Q8_0], [Q4_0, Q4_0], [Q8_0, Q4_0], [F16, Q8_0]]
    {
        Case::causal(Shape { kinds, ..SHAPE }, 1).check(&format!("{kinds:?}"));
        assert!(kinds.iter().all(|kind| CacheFormat::of_ggml(*kind).is_some()));
    }
}

#[test]
fn every_size_of_a_head_gives_the_exact_bits() {
    for (dk, dv) in
        [(8, 8), (64, 64), (80, 80), (96, 96), (112, 112), (128, 128), (192, 128), (256, 256), (576, 512)]
    {
        Case::causal(Shape { dk, dv, cells: 150, ..SHAPE }, 2).check(&format!("{dk} and {dv}"));
    }
}

#[test]
fn any_number_of_heads_tokens_and_cells_gives_the_exact_bits() {
    for (heads, kv_heads) in [(1, 1), (2, 1), (4, 1), (5, 5), (7, 1), (8, 2), (71, 1)] {
        Case::causal(Shape { heads, kv_heads, ..SHAPE }, 3).check(&format!("{heads} of {kv_heads} heads"));
    }
    for tokens in [1, 2, 5, 16, 17, 40] {
        Case::causal(Shape { tokens, ..SHAPE }, 4).check(&format!("{tokens} tokens"));
    }
    for cells in [3, 47, 48, 49, 96, 100, 481, 1200] {
        Case::causal(Shape { cells, ..SHAPE }, 5).check(&format!("{cells} cells"));
    }
    Case::causal(Shape { streams: 3, ..SHAPE }, 6).check("three streams");
}

#[test]
fn whatever_changes_a_score_follows_the_rule() {
    let plain = Case::causal(Shape { cells: 700, tokens: 30, ..SHAPE }, 7);
    Case { mask: None, ..plain.clone() }.check("no mask");
    Case { softcap: 2.0, ..plain.clone() }.check("soft cap");
    Case { sinks: Some((0..6).map(|head| head as f32 - 3.0).collect()), ..plain.clone() }.check("sinks");
    let window = mask(30, 700, 1, |token, cell| (token + 600..token + 671).contains(&cell));
    Case { mask: Some(window), ..plain.clone() }.check("sliding window");
    // Distances of up to 700, as in ALiBi. F16 represents whole numbers below 2,048 exactly.
    let distances = (0..30 * 700usize).map(|at| {
        let (token, cell) = (at / 700, at % 700);
        let distance = (token + 670).checked_sub(cell).filter(|distance| *distance > 0);
        distance.map_or(if token + 670 == cell { 0 } else { MASKED }, |distance| {
            let exponent = distance.ilog2();
            0x8000 | ((exponent + 15) << 10) as u16 | ((distance << 10 >> exponent) as u16 & 0x3ff)
        })
    });
    Case { mask: Some(distances.collect()), max_bias: 8.0, ..plain.clone() }.check("ALiBi");
    for scale in [1e-20f32, 1e3, 1e6, 1e20] {
        let q = plain.q.iter().map(|q| q * scale).collect();
        Case { q, ..plain.clone() }.check(&format!("queries times {scale}"));
    }
}

/// The sequences of a server share the cells of a cache, in any mixture.
#[test]
fn neighbours_and_places_do_not_change_a_bit() {
    let alone = Case::causal(Shape { cells: 130, tokens: 4, ..SHAPE }, 8);
    let expected = bits(&alone.exact());
    // Every third of 400 cells belongs to the sequence. The others contain NaN or infinity.
    let place = |cell: usize| 5 + 3 * cell;
    let (tokens, cells) = (8, 400);
    let mut shared = Case::causal(Shape { cells, tokens, ..SHAPE }, 9);
    for (bytes, number) in [(&mut shared.k.bytes, 0x7e00u16), (&mut shared.v.bytes, 0x7c00)] {
        bytes.chunks_exact_mut(2).for_each(|pair| pair.copy_from_slice(&number.to_le_bytes()));
    }
    let row = alone.k.row_bytes * 2;
    for cell in 0..130 {
        for (to, from) in [(&mut shared.k, &alone.k), (&mut shared.v, &alone.v)] {
            to.bytes[place(cell) * row..][..row].copy_from_slice(&from.bytes[cell * row..][..row]);
        }
    }
    let own = alone.mask.clone().unwrap();
    // Tokens of two sequences take turns.
    shared.mask = Some(mask(tokens, cells, 1, |token, cell| {
        let own_cell = (5..395).contains(&cell) && (cell - 5) % 3 == 0;
        match token % 2 {
            0 => own_cell && own[token / 2 * 130 + (cell - 5) / 3] == 0,
            _ => cell % 3 == 1,
        }
    }));
    let length = alone.dk * alone.heads;
    for token in 0..4 {
        let (from, to) = (token * length, 2 * token * length);
        shared.q[to..to + length].copy_from_slice(&alone.q[from..from + length]);
    }
    for threads in [1, 2, 5] {
        let found = shared.compute(threads);
        for token in 0..4 {
            let found = bits(&found[2 * token * length..][..length]);
            assert!(found == expected[token * length..][..length], "token {token}, {threads} threads");
        }
        assert!(
            found[length..2 * length].iter().all(|value| value.is_nan()),
            "the neighbours' values are not numbers"
        );
    }
}

#[test]
fn what_is_no_number_reaches_only_those_who_see_it() {
    let mut case = Case::causal(Shape { cells: 200, tokens: 2, ..SHAPE }, 10);
    // Only the last token may see the last cell.
    let row = case.k.row_bytes * 2;
    case.k.bytes[199 * row..]
        .chunks_exact_mut(2)
        .for_each(|pair| pair.copy_from_slice(&0x7e00u16.to_le_bytes()));
    let found = case.compute(2);
    let (first, second) = found.split_at(found.len() / 2);
    assert!(first.iter().all(|value| value.is_finite()) && second.iter().all(|value| value.is_nan()));
    // A token that may see nothing gets zeros.
    case.mask = Some(vec![MASKED; 400]);
    assert!(case.compute(2).iter().all(|value| value.to_bits() == 0));
}

#[test]
fn the_rule_is_that_of_attention() {
    let case = Case::causal(Shape { cells: 90, ..SHAPE }, 11);
    let exact = case.exact();
    for (row, out) in exact.chunks(case.dv).enumerate() {
        let (token, head) = (row / case.heads, row % case.heads);
        let mut total = 0f64;
        let mut sums = vec![0f64; case.dv];
        for cell in 0..case.cells - case.tokens + 1 + token {
            let at = cell * case.kv_heads + head / 3;
            let (q, k) = (&case.q[row * case.dk..][..case.dk], &case.k.values[at * case.dk..][..case.dk]);
            let dot: f64 = q.iter().zip(k).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
            let weight = (dot * f64::from(case.scale())).exp();
            total += weight;
            for (sum, v) in sums.iter_mut().zip(&case.v.values[at * case.dv..]) {
                *sum += weight * f64::from(*v);
            }
        }
        for (out, sum) in out.iter().zip(sums) {
            assert!((f64::from(*out) - sum / total).abs() < 1e-6, "{out} {}", sum / total);
        }
    }
}

#[test]
fn shapes_without_a_kernel_have_no_work_size() {
    let case = Case::causal(SHAPE, 12);
    let size = |change: fn(&mut Attention)| {
        let mut op = case.operation(&mut []);
        change(&mut op);
        // SAFETY: the size depends on numbers only.
        unsafe { (kernels(InstructionSet::Avx2).attention_work_size)(&op, 2) }
    };
    assert!(size(|_| ()) > 0);
    assert_eq!(size(|op| op.dk = 60), 0, "half a vector");
    assert_eq!(size(|op| (op.dk, op.k_kind) = (40, Q8_0)), 0, "a block and a quarter");
    assert_eq!(size(|op| op.k_kind = 6), 0, "Q5_0");
    assert_eq!(size(|op| op.kv_heads = 4), 0, "heads that cannot be shared evenly");
    assert_eq!(size(|op| op.cells = 0), 0, "no cells");
    assert_eq!(size(|op| op.tokens = -1), 0, "a negative number");
}
