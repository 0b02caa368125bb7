//! Measurement of multiply-adds from registers per second.

use std::hint::black_box;
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::kernel::Kernel;
use crate::passes::Passes;
use crate::team;

/// Loops that this CPU supports, one for each kind of operand: those with the most multiply-adds per round.
#[derive(Clone, Copy, Debug)]
pub struct ChosenLoops {
    /// Loop over 8-bit integers.
    pub int8: Kernel,
    /// Loop over 8-bit integers with 32-bit sums, if [`int8`](Self::int8) has 16-bit sums.
    pub int8_wide: Option<Kernel>,
    /// Loop over 32-bit floats.
    pub f32: Kernel,
    /// Loop over bf16 pairs, with sums in 32-bit floats.
    pub bf16: Option<Kernel>,
}

/// Number of rounds in one run. A round adds at most 32 to a float, and floats count exactly up to 2^24.
const ROUNDS: u64 = 1 << 19;

/// Target duration of a pass, long enough that the clock's resolution and the start of the threads do not matter.
const PASS: Duration = Duration::from_millis(10);

/// Returns the best loops for this CPU.
pub fn kernels() -> ChosenLoops {
    let best = |kernels: Vec<Kernel>| kernels.into_iter().next_back();
    let all = int8();
    let chosen = all.last().copied().unwrap_or(PORTABLE_INT8);
    let wide = all.into_iter().rfind(|kernel| kernel.sum_bits == 32);
    ChosenLoops {
        int8: chosen,
        int8_wide: wide.filter(|_| chosen.sum_bits < 32),
        f32: best(f32()).unwrap_or(PORTABLE_F32),
        bf16: best(bf16()),
    }
}

/// Runs `kernel` on every CPU of `cpus` for `seconds`.
///
/// # Errors
/// If a thread cannot be bound to its CPU, or a result is wrong.
pub fn measure(kernel: &Kernel, cpus: &[u32], seconds: f64) -> Result<Passes, Error> {
    let expected = (ROUNDS * kernel.macs) as f64;
    let run = || match (kernel.run)(black_box(ROUNDS)) {
        sum if sum == expected => Ok(expected),
        _ => Err(Error::WrongSum { kernel: kernel.name }),
    };
    let start = Instant::now();
    run()?;
    // All threads perform the same number of runs, so that they end together.
    let runs = (PASS.as_secs_f64() / start.elapsed().as_secs_f64()).clamp(1.0, 100.0) as u32;
    team::run(cpus, seconds, || (), |()| (0..runs).try_fold(0.0, |done, _| Ok(done + run()?)))
}

/// Returns all loops over 8-bit integers that this CPU supports, the best last.
fn int8() -> Vec<Kernel> {
    #[cfg_attr(not(target_arch = "x86_64"), expect(unused_mut, reason = "the other loops are for x86"))]
    let mut all = vec![PORTABLE_INT8];
    #[cfg(target_arch = "x86_64")]
    all.extend(crate::x86::int8().into_iter().chain(crate::amx::int8()));
    all
}

fn f32() -> Vec<Kernel> {
    #[cfg_attr(not(target_arch = "x86_64"), expect(unused_mut, reason = "the other loops are for x86"))]
    let mut all = vec![PORTABLE_F32];
    #[cfg(target_arch = "x86_64")]
    all.extend(crate::x86::f32());
    all
}

fn bf16() -> Vec<Kernel> {
    #[cfg(target_arch = "x86_64")]
    return crate::x86::bf16().into_iter().chain(crate::amx::bf16()).collect();
    #[cfg(not(target_arch = "x86_64"))]
    Vec::new()
}

/// Number of lanes in the portable loops: enough for several vectors of any width.
const LANES: usize = 64;

const PORTABLE_INT8: Kernel =
    Kernel { name: "portable", macs: LANES as u64 * 4, sum_bits: 32, run: portable_int8 };
const PORTABLE_F32: Kernel = Kernel { name: "portable", macs: LANES as u64, sum_bits: 32, run: portable_f32 };

fn portable_int8(rounds: u64) -> f64 {
    let a = black_box([1i8; LANES * 4]);
    let mut b = [1i8; LANES * 4];
    let mut sums = [0i32; LANES];
    for _ in 0..rounds {
        // `black_box` hides the operand's value in every round, so that the compiler cannot reuse a product.
        black_box(&mut b);
        for (lane, sum) in sums.iter_mut().enumerate() {
            for at in lane * 4..lane * 4 + 4 {
                *sum += i32::from(a[at]) * i32::from(b[at]);
            }
        }
    }
    sums.iter().map(|sum| f64::from(*sum)).sum()
}

fn portable_f32(rounds: u64) -> f64 {
    let a = black_box([1f32; LANES]);
    let mut b = [1f32; LANES];
    let mut sums = [0f32; LANES];
    for _ in 0..rounds {
        black_box(&mut b);
        for (sum, (a, b)) in sums.iter_mut().zip(a.iter().zip(&b)) {
            // The multiply-add is only fused if every CPU of the target supports this: a software implementation is a
            // hundred times slower.
            *sum = if cfg!(target_arch = "aarch64") { a.mul_add(*b, *sum) } else { *sum + a * b };
        }
    }
    sums.iter().map(|sum| f64::from(*sum)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_does_all_its_multiply_adds() {
        for kernel in int8().into_iter().chain(f32()).chain(bf16()) {
            for rounds in [1, 7, 1000, ROUNDS] {
                let done = (kernel.run)(rounds);
                assert_eq!(done, (rounds * kernel.macs) as f64, "{}, {rounds} rounds", kernel.name);
            }
        }
    }

    #[test]
    fn a_loop_that_leaves_something_out_is_told_of() {
        let lazy = Kernel { name: "lazy", macs: 64, sum_bits: 32, run: |rounds| (rounds * 64 - 1) as f64 };
        let cpu = crate::team::tests::allowed()[0];
        assert_eq!(measure(&lazy, &[cpu], 0.0), Err(Error::WrongSum { kernel: "lazy" }));
    }
}
