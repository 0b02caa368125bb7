//! Loops of x86 vector instructions.
//!
//! A loop is listed only if the CPU and the operating system support its instructions, which
//! `is_x86_feature_detected!` checks at run time. A loop has [`SUMS`] sums. A multiply-add takes 4 or 5 cycles, and
//! two can start in each cycle, so with fewer than 10 sums the units would wait for their own results.
//!
//! Without VNNI, products of bytes use `vpmaddubsw`, which adds pairs of products into 16 bits. A kernel can widen
//! each result to 32 bits immediately with `vpmaddwd`, which works for any operands. Alternatively, a kernel can
//! first add several results in 16 bits, which works only for codes of few bits. Both methods are measured.

use std::arch::asm;
use std::arch::x86_64::*;
use std::hint::black_box;

use crate::kernel::Kernel;
use crate::read::Sum;

/// Number of sums in a loop. The sums and the operands together fit into AVX2's sixteen registers.
const SUMS: usize = 12;

/// Number of 16-bit results that are added before they are widened. This is the number of results for 32 elements of
/// a row with 4 bytes per 32-bit lane, the block size of most quantisations.
const DEPTH: usize = 8;

/// Number of 32-bit sums in a loop with 16-bit sums. A few sums suffice, because products do not wait for a sum. The
/// compiler would not keep more sums in registers.
const NARROW_SUMS: usize = 4;

/// Hides the value of a register from the compiler at no cost. Otherwise the compiler would reuse a product for
/// several sums, or compute it only once for the whole loop.
macro_rules! opaque {
    ($class:ident, $value:ident) => {
        // SAFETY: the assembly is a comment; it only reads and writes the given register.
        unsafe { asm!("/* {0} */", inout($class) $value, options(nomem, nostack, preserves_flags)) }
    };
}

/// Runs `$rounds` rounds, each of which applies `$step` to every sum, and returns the sums.
macro_rules! rounds {
    ($rounds:ident, $class:ident, $zero:expr, $a:ident, |$sum:ident| $step:expr) => {{
        let mut sums = [$zero; SUMS];
        for _ in 0..$rounds {
            for $sum in &mut sums {
                opaque!($class, $a);
                *$sum = $step;
            }
        }
        sums
    }};
}

/// Wraps a function with target features in a safe function, for a list of detected functions.
macro_rules! detected {
    ($function:path) => {
        // SAFETY: a function is listed only if its instructions were detected.
        |argument| unsafe { $function(argument) }
    };
}

/// Returns read loops for this CPU, the widest last.
pub fn sums() -> Vec<Sum> {
    let mut all: Vec<Sum> = Vec::new();
    if is_x86_feature_detected!("avx2") {
        all.push(("avx2", detected!(sum_avx2)));
    }
    if is_x86_feature_detected!("avx512f") {
        all.push(("avx512f", detected!(sum_avx512)));
    }
    all
}

/// Returns loops over 8-bit integers, the best last.
pub fn int8() -> Vec<Kernel> {
    let mut all = Vec::new();
    let kernel = |name, lanes: usize, run| Kernel { name, macs: (lanes * SUMS) as u64, sum_bits: 32, run };
    let narrow = |name, lanes: usize, run| Kernel {
        name,
        macs: (lanes * DEPTH * NARROW_SUMS) as u64,
        sum_bits: 16,
        run,
    };
    if is_x86_feature_detected!("avx2") {
        all.push(kernel("avx2", 32, detected!(int8_avx2)));
        all.push(narrow("avx2, 16-bit sums", 32, detected!(int8_avx2_narrow)));
    }
    if is_x86_feature_detected!("avxvnni") {
        all.push(kernel("avx_vnni", 32, detected!(int8_avx_vnni)));
    }
    if is_x86_feature_detected!("avx512bw") {
        all.push(kernel("avx512bw", 64, detected!(int8_avx512)));
        all.push(narrow("avx512bw, 16-bit sums", 64, detected!(int8_avx512_narrow)));
    }
    if is_x86_feature_detected!("avx512vnni") {
        all.push(kernel("avx512_vnni", 64, detected!(int8_avx512_vnni)));
    }
    all
}

/// Returns loops over 32-bit floats, the best last.
pub fn f32() -> Vec<Kernel> {
    let mut all = Vec::new();
    let kernel = |name, lanes: usize, run| Kernel { name, macs: (lanes * SUMS) as u64, sum_bits: 32, run };
    if is_x86_feature_detected!("avx") && is_x86_feature_detected!("fma") {
        all.push(kernel("fma", 8, detected!(f32_fma)));
    }
    if is_x86_feature_detected!("avx512f") {
        all.push(kernel("avx512f", 16, detected!(f32_avx512)));
    }
    all
}

/// Returns the loop over bf16 if the CPU supports it.
pub fn bf16() -> Option<Kernel> {
    let detected = is_x86_feature_detected!("avx512bf16") && is_x86_feature_detected!("avx512f");
    let run = detected!(bf16_avx512);
    detected.then_some(Kernel { name: "avx512_bf16", macs: (32 * SUMS) as u64, sum_bits: 32, run })
}

/// Length of the block that one round of a read loop loads: eight loads of eight 8-byte numbers.
const BLOCK: usize = 64;

#[target_feature(enable = "avx2")]
fn sum_avx2(numbers: &[u64]) -> u64 {
    let mut sums = [_mm256_setzero_si256(); 8];
    let (blocks, rest) = numbers.as_chunks::<{ BLOCK / 2 }>();
    for block in blocks {
        for (at, sum) in sums.iter_mut().enumerate() {
            // SAFETY: eight loads of four numbers lie within the block of 32.
            let loaded = unsafe { _mm256_loadu_si256(block.as_ptr().add(at * 4).cast()) };
            *sum = _mm256_add_epi64(*sum, loaded);
        }
    }
    let total = sums.into_iter().fold(_mm256_setzero_si256(), |total, sum| _mm256_add_epi64(total, sum));
    let mut lanes = [0u64; 4];
    // SAFETY: the array has the size of four 64-bit lanes.
    unsafe { _mm256_storeu_si256(lanes.as_mut_ptr().cast(), total) };
    lanes.iter().chain(rest).fold(0, |total, part| total.wrapping_add(*part))
}

#[target_feature(enable = "avx512f")]
fn sum_avx512(numbers: &[u64]) -> u64 {
    let mut sums = [_mm512_setzero_si512(); 8];
    let (blocks, rest) = numbers.as_chunks::<BLOCK>();
    for block in blocks {
        for (at, sum) in sums.iter_mut().enumerate() {
            // SAFETY: eight loads of eight numbers lie within the block of 64.
            let loaded = unsafe { _mm512_loadu_si512(block.as_ptr().add(at * 8).cast()) };
            *sum = _mm512_add_epi64(*sum, loaded);
        }
    }
    let total = sums.into_iter().fold(_mm512_setzero_si512(), |total, sum| _mm512_add_epi64(total, sum));
    let mut lanes = [0u64; 8];
    // SAFETY: the array has the size of eight 64-bit lanes.
    unsafe { _mm512_storeu_si512(lanes.as_mut_ptr().cast(), total) };
    lanes.iter().chain(rest).fold(0, |total, part| total.wrapping_add(*part))
}

/// Runs `$rounds` rounds with 16-bit sums: for each 32-bit sum, [`DEPTH`] products are added in 16 bits and then
/// widened.
macro_rules! narrow_rounds {
    ($rounds:ident, $class:ident, $zero:expr, $a:ident, $product:expr, $add16:ident, |$sum:ident, $narrow:ident| $wide:expr) => {{
        let mut sums = [$zero; NARROW_SUMS];
        for _ in 0..$rounds {
            for $sum in &mut sums {
                opaque!($class, $a);
                let mut $narrow = $product;
                for _ in 1..DEPTH {
                    opaque!($class, $a);
                    $narrow = $add16($narrow, $product);
                }
                *$sum = $wide;
            }
        }
        sums
    }};
}

/// Loop for codes of any size: multiplies bytes to 16-bit pairs, widens the pairs to 32 bits, and adds them.
#[target_feature(enable = "avx2")]
fn int8_avx2(rounds: u64) -> f64 {
    let (mut a, b) = (black_box(_mm256_set1_epi8(1)), black_box(_mm256_set1_epi8(1)));
    let ones = black_box(_mm256_set1_epi16(1));
    let sums = rounds!(rounds, ymm_reg, _mm256_setzero_si256(), a, |sum| {
        let pairs = _mm256_maddubs_epi16(a, b);
        _mm256_add_epi32(*sum, _mm256_madd_epi16(pairs, ones))
    });
    sums.into_iter().map(|sum| lanes_256(sum)).sum()
}

/// Loop for codes of few bits, such as 0 to 15: adds [`DEPTH`] products in 16 bits, then widens pairs to 32 bits.
#[target_feature(enable = "avx2")]
fn int8_avx2_narrow(rounds: u64) -> f64 {
    let (mut a, b) = (black_box(_mm256_set1_epi8(1)), black_box(_mm256_set1_epi8(1)));
    let ones = black_box(_mm256_set1_epi16(1));
    let sums = narrow_rounds!(
        rounds,
        ymm_reg,
        _mm256_setzero_si256(),
        a,
        _mm256_maddubs_epi16(a, b),
        _mm256_add_epi16,
        |sum, narrow| _mm256_add_epi32(*sum, _mm256_madd_epi16(narrow, ones))
    );
    sums.into_iter().map(|sum| lanes_256(sum)).sum()
}

#[target_feature(enable = "avx2,avxvnni")]
fn int8_avx_vnni(rounds: u64) -> f64 {
    let (mut a, b) = (black_box(_mm256_set1_epi8(1)), black_box(_mm256_set1_epi8(1)));
    let sums = rounds!(rounds, ymm_reg, _mm256_setzero_si256(), a, |sum| _mm256_dpbusd_avx_epi32(*sum, a, b));
    sums.into_iter().map(|sum| lanes_256(sum)).sum()
}

#[target_feature(enable = "avx512f,avx512bw")]
fn int8_avx512(rounds: u64) -> f64 {
    let (mut a, b) = (black_box(_mm512_set1_epi8(1)), black_box(_mm512_set1_epi8(1)));
    let ones = black_box(_mm512_set1_epi16(1));
    let sums = rounds!(rounds, zmm_reg, _mm512_setzero_si512(), a, |sum| {
        let pairs = _mm512_maddubs_epi16(a, b);
        _mm512_add_epi32(*sum, _mm512_madd_epi16(pairs, ones))
    });
    sums.into_iter().map(|sum| f64::from(_mm512_reduce_add_epi32(sum))).sum()
}

#[target_feature(enable = "avx512f,avx512bw")]
fn int8_avx512_narrow(rounds: u64) -> f64 {
    let (mut a, b) = (black_box(_mm512_set1_epi8(1)), black_box(_mm512_set1_epi8(1)));
    let ones = black_box(_mm512_set1_epi16(1));
    let sums = narrow_rounds!(
        rounds,
        zmm_reg,
        _mm512_setzero_si512(),
        a,
        _mm512_maddubs_epi16(a, b),
        _mm512_add_epi16,
        |sum, narrow| _mm512_add_epi32(*sum, _mm512_madd_epi16(narrow, ones))
    );
    sums.into_iter().map(|sum| f64::from(_mm512_reduce_add_epi32(sum))).sum()
}

#[target_feature(enable = "avx512f,avx512vnni")]
fn int8_avx512_vnni(rounds: u64) -> f64 {
    let (mut a, b) = (black_box(_mm512_set1_epi8(1)), black_box(_mm512_set1_epi8(1)));
    let sums = rounds!(rounds, zmm_reg, _mm512_setzero_si512(), a, |sum| _mm512_dpbusd_epi32(*sum, a, b));
    sums.into_iter().map(|sum| f64::from(_mm512_reduce_add_epi32(sum))).sum()
}

#[target_feature(enable = "avx,fma")]
fn f32_fma(rounds: u64) -> f64 {
    let (mut a, b) = (black_box(_mm256_set1_ps(1.0)), black_box(_mm256_set1_ps(1.0)));
    let sums = rounds!(rounds, ymm_reg, _mm256_setzero_ps(), a, |sum| _mm256_fmadd_ps(a, b, *sum));
    let mut lanes = [0f32; 8 * SUMS];
    for (sum, lanes) in sums.into_iter().zip(lanes.as_chunks_mut::<8>().0) {
        // SAFETY: the chunk has the size of eight 32-bit lanes.
        unsafe { _mm256_storeu_ps(lanes.as_mut_ptr(), sum) };
    }
    lanes.into_iter().map(f64::from).sum()
}

#[target_feature(enable = "avx512f")]
fn f32_avx512(rounds: u64) -> f64 {
    let (mut a, b) = (black_box(_mm512_set1_ps(1.0)), black_box(_mm512_set1_ps(1.0)));
    let sums = rounds!(rounds, zmm_reg, _mm512_setzero_ps(), a, |sum| _mm512_fmadd_ps(a, b, *sum));
    sums.into_iter().map(|sum| lanes_f32(sum)).sum()
}

#[target_feature(enable = "avx512f,avx512bf16")]
fn bf16_avx512(rounds: u64) -> f64 {
    // Two bf16 ones side by side in 32 bits. The bf16 value 1.0 is the upper half of the float's bits.
    const ONES: i32 = 0x3f80_3f80;
    let (mut a, b) = (black_box(_mm512_set1_epi32(ONES)), black_box(_mm512_set1_epi32(ONES)));
    let sums = rounds!(rounds, zmm_reg, _mm512_setzero_ps(), a, |sum| {
        // SAFETY: both types have 64 bytes, and every bit pattern is valid.
        let (a, b) = unsafe { std::mem::transmute::<[__m512i; 2], [__m512bh; 2]>([a, b]) }.into();
        _mm512_dpbf16_ps(*sum, a, b)
    });
    sums.into_iter().map(|sum| lanes_f32(sum)).sum()
}

/// Returns the sum of the lanes, which may need more than 32 bits.
#[target_feature(enable = "avx2")]
fn lanes_256(sum: __m256i) -> f64 {
    let mut lanes = [0i32; 8];
    // SAFETY: the array has the size of eight 32-bit lanes.
    unsafe { _mm256_storeu_si256(lanes.as_mut_ptr().cast(), sum) };
    lanes.into_iter().map(f64::from).sum()
}

/// Returns the sum of the lanes, which a 32-bit float may not represent exactly.
#[target_feature(enable = "avx512f")]
fn lanes_f32(sum: __m512) -> f64 {
    let mut lanes = [0f32; 16];
    // SAFETY: the array has the size of sixteen 32-bit lanes.
    unsafe { _mm512_storeu_ps(lanes.as_mut_ptr(), sum) };
    lanes.into_iter().map(f64::from).sum()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, OpKind};

    use super::*;

    type Run = unsafe fn(u64) -> f64;

    /// Vector instructions of a round: each mnemonic with its number of occurrences.
    type Counts<'a> = &'a [(&'a str, usize)];

    /// Upper bound on the size of a function in this file.
    const LARGEST: usize = 4096;

    /// Decodes the function `start` up to its last return.
    fn decoded(start: Run) -> Vec<Instruction> {
        let address = start as *const u8;
        // SAFETY: the code of this program is mapped and readable, and continues behind the function, because the
        // program's tests and libraries are far larger than this limit.
        let code = unsafe { std::slice::from_raw_parts(address, LARGEST) };
        let decoder = Decoder::with_ip(64, code, address as u64, DecoderOptions::NONE);
        let (mut body, mut farthest) = (Vec::new(), 0);
        for instruction in decoder {
            body.push(instruction);
            let flow = instruction.flow_control();
            if matches!(flow, FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch) {
                farthest = farthest.max(instruction.near_branch_target());
            }
            if flow == FlowControl::Return && instruction.ip() >= farthest {
                return body;
            }
        }
        panic!("the function has no end within {LARGEST} bytes");
    }

    /// Returns the instructions of the first loop of `body`, which contains the rounds. A later loop may add up the
    /// sums.
    fn first_loop(body: &[Instruction]) -> &[Instruction] {
        let is_back = |branch: &Instruction| {
            branch.flow_control() == FlowControl::ConditionalBranch
                && branch.near_branch_target() <= branch.ip()
        };
        let end = body.iter().position(is_back).expect("a loop");
        let start = body.iter().position(|first| first.ip() == body[end].near_branch_target());
        &body[start.expect("the target of the branch")..=end]
    }

    #[test]
    fn a_round_has_the_instructions_of_its_multiply_adds_and_no_others() {
        let (many, few) = (SUMS, NARROW_SUMS);
        let wide: Counts = &[("Vpmaddubsw", many), ("Vpmaddwd", many), ("Vpaddd", many)];
        let narrow: Counts =
            &[("Vpmaddubsw", few * DEPTH), ("Vpaddw", few * (DEPTH - 1)), ("Vpmaddwd", few), ("Vpaddd", few)];
        let one = |name| [(name, many)];
        let cases: [(&str, Run, Counts); 9] = [
            ("int8_avx2", int8_avx2, wide),
            ("int8_avx2_narrow", int8_avx2_narrow, narrow),
            ("int8_avx_vnni", int8_avx_vnni, &one("Vpdpbusd")),
            ("int8_avx512", int8_avx512, wide),
            ("int8_avx512_narrow", int8_avx512_narrow, narrow),
            ("int8_avx512_vnni", int8_avx512_vnni, &one("Vpdpbusd")),
            ("f32_fma", f32_fma, &one("Vfmadd231ps")),
            ("f32_avx512", f32_avx512, &one("Vfmadd231ps")),
            ("bf16_avx512", bf16_avx512, &one("Vdpbf16ps")),
        ];
        for (name, function, expected) in cases {
            let body = decoded(function);
            let round = first_loop(&body);
            let mut vector: BTreeMap<String, usize> = BTreeMap::new();
            for instruction in round {
                let in_memory =
                    (0..instruction.op_count()).any(|at| instruction.op_kind(at) == OpKind::Memory);
                assert!(!in_memory, "{name}: a register was spilled: {:?}", instruction.mnemonic());
                let mnemonic = format!("{:?}", instruction.mnemonic());
                if mnemonic.starts_with('V') {
                    *vector.entry(mnemonic).or_default() += 1;
                }
            }
            let expected = expected.iter().map(|(name, count)| (name.to_string(), *count)).collect();
            assert_eq!(vector, expected, "{name}");
            // The rest of the loop is only the round counter and the branch.
            assert!(
                round.len() <= vector.values().sum::<usize>() + 3,
                "{name}: {} instructions",
                round.len()
            );
        }
    }
}
