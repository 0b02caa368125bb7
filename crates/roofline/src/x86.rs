//! Loops that use x86 vector instructions.
//!
//! Each loop is listed only if the CPU and the operating system support its instructions, which
//! `is_x86_feature_detected!` checks at run time. A loop keeps [`SUMS`] sums. A multiply-add takes 4 or 5 cycles, and
//! two can start in each cycle, so with fewer than 10 sums the units would wait for their own results.

use std::arch::asm;
use std::arch::x86_64::*;
use std::hint::black_box;

use crate::kernel::Kernel;
use crate::read::Sum;

/// Number of sums in a loop: together with the operands, they fit into AVX2's sixteen registers.
const SUMS: usize = 12;

/// Makes a register opaque to the compiler at no cost. Otherwise the compiler would compute the products once, before
/// the loop.
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
            opaque!($class, $a);
            for $sum in &mut sums {
                *$sum = $step;
            }
        }
        sums
    }};
}

/// Wraps a function with target features in a safe function, for a list that is built after detection.
macro_rules! detected {
    ($function:path) => {
        // SAFETY: listed only if the instructions were detected.
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
    let kernel = |name, lanes: usize, run| Kernel { name, macs: (lanes * SUMS) as u64, run };
    if is_x86_feature_detected!("avx2") {
        all.push(kernel("avx2", 32, detected!(int8_avx2)));
    }
    if is_x86_feature_detected!("avxvnni") {
        all.push(kernel("avx_vnni", 32, detected!(int8_avx_vnni)));
    }
    if is_x86_feature_detected!("avx512bw") {
        all.push(kernel("avx512bw", 64, detected!(int8_avx512)));
    }
    if is_x86_feature_detected!("avx512vnni") {
        all.push(kernel("avx512_vnni", 64, detected!(int8_avx512_vnni)));
    }
    all
}

/// Returns loops over 32-bit floats, the best last.
pub fn f32() -> Vec<Kernel> {
    let mut all = Vec::new();
    let kernel = |name, lanes: usize, run| Kernel { name, macs: (lanes * SUMS) as u64, run };
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
    detected.then_some(Kernel { name: "avx512_bf16", macs: (32 * SUMS) as u64, run })
}

/// Numbers that a round of reading takes: eight loads of eight numbers of 8 bytes.
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

/// Loop that ggml uses without VNNI: bytes to pairs in 16 bits, pairs to 32 bits, and the addition.
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
    // Two bf16 ones side by side in 32 bits; 1.0 is the upper half of the float's bits.
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
