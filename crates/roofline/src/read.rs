//! Measurement of bytes read from memory per second.

use std::hint::black_box;

use build_info::Bytes;

use crate::buffer::Buffer;
use crate::error::Error;
use crate::passes::Passes;
use crate::team;

/// Name and function of a loop that adds up numbers, modulo 2^64.
pub type Sum = (&'static str, fn(&[u64]) -> u64);

/// Reads `bytes` for `seconds` with one thread per CPU of `cpus`; each thread reads its own part.
///
/// # Errors
/// If a thread cannot be bound to its CPU, or a sum is wrong.
pub fn measure(cpus: &[u32], bytes: Bytes, seconds: f64) -> Result<Passes, Error> {
    let (kernel, sum) = best();
    let share = bytes.0 / cpus.len().max(1) as u64;
    let work = |buffer: &mut Buffer| {
        let (numbers, expected) = buffer.part();
        // `black_box` hides the content of the memory, so that the compiler cannot reuse the previous sum.
        if sum(black_box(numbers)) != expected {
            return Err(Error::WrongSum { kernel });
        }
        Ok(std::mem::size_of_val(numbers) as f64)
    };
    team::run(cpus, seconds, || Buffer::filled(share), work)
}

/// Returns the name of the read loop.
pub fn name() -> &'static str {
    best().0
}

fn best() -> Sum {
    all().pop().unwrap_or(("portable", portable))
}

/// Returns all read loops that this CPU supports, the widest last.
fn all() -> Vec<Sum> {
    #[cfg_attr(not(target_arch = "x86_64"), expect(unused_mut, reason = "the other loops are for x86"))]
    let mut all: Vec<Sum> = vec![("portable", portable)];
    #[cfg(target_arch = "x86_64")]
    all.extend(crate::x86::sums());
    all
}

/// Adds up numbers in eight independent sums, which the compiler vectorises with the instructions that the target
/// guarantees.
fn portable(numbers: &[u64]) -> u64 {
    let mut sums = [0u64; 8];
    let (blocks, rest) = numbers.as_chunks::<8>();
    for block in blocks {
        for (sum, number) in sums.iter_mut().zip(block) {
            *sum = sum.wrapping_add(*number);
        }
    }
    sums.iter().chain(rest).fold(0, |total, part| total.wrapping_add(*part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_reads_all_there_is() {
        for (name, sum) in all() {
            for bytes in [512, 4096, 100_000] {
                let mut buffer = Buffer::filled(bytes);
                let (numbers, expected) = buffer.whole();
                assert_eq!(sum(numbers), expected, "{name}, {bytes} bytes");
                // A change of any single number must be detected.
                let count = numbers.len();
                for index in [0, count / 2, count - 1] {
                    buffer.change(index);
                    let (numbers, expected) = buffer.whole();
                    assert_ne!(sum(numbers), expected, "{name}, {bytes} bytes, number {index}");
                    buffer = Buffer::filled(bytes);
                }
            }
        }
    }

    #[test]
    fn a_rate_is_measured_and_a_wrong_sum_is_told() {
        let passes = measure(&[crate::team::tests::allowed()[0]], Bytes(1 << 20), 0.0).expect("measured");
        assert!(passes.best() >= passes.median() && passes.median() > 0.0, "{passes:?}");
    }
}
