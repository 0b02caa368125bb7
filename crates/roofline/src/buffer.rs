//! Buffers for read measurements.

/// Numbers in memory of this thread's NUMA node. The system places a page on the node of the thread that writes to
/// the page first.
pub struct Buffer {
    numbers: Vec<u64>,
    /// Start of the next part.
    next: usize,
}

/// Length of a block, which a kernel reads per round: 64 numbers, or 512 bytes.
const BLOCK: u64 = 64;

/// Number of parts of a buffer. The parts are read one after the other. Even if other processes use the memory, a short
/// part has a good chance of being read undisturbed.
const PARTS: usize = 8;

impl Buffer {
    /// Creates a buffer of at least `bytes` bytes, in whole blocks. Each number is its own index.
    pub fn filled(bytes: u64) -> Self {
        let count = (bytes / 8).next_multiple_of(BLOCK);
        let mut numbers = Vec::with_capacity(usize::try_from(count).unwrap_or(usize::MAX));
        huge_pages(&mut numbers);
        numbers.extend(0..count);
        Buffer { numbers, next: 0 }
    }

    /// Returns the next part and the sum of its numbers, modulo 2^64. The first part follows the last part. By then,
    /// all other parts have been read, so no cache still contains the first part.
    pub fn part(&mut self) -> (&[u64], u64) {
        let block = BLOCK as usize;
        let size = (self.numbers.len() / PARTS).next_multiple_of(block).max(block);
        let from = if self.next < self.numbers.len() { self.next } else { 0 };
        let to = self.numbers.len().min(from + size);
        self.next = to;
        (&self.numbers[from..to], sum(from as u64, to as u64))
    }

    /// Changes the number at `index`.
    #[cfg(test)]
    pub fn change(&mut self, index: usize) {
        self.numbers[index] ^= 1 << 40;
    }

    /// Returns all numbers and their sum, modulo 2^64.
    #[cfg(test)]
    pub fn whole(&self) -> (&[u64], u64) {
        (&self.numbers, sum(0, self.numbers.len() as u64))
    }
}

/// Returns the sum of the numbers from `from` up to, but not including, `to`, modulo 2^64.
fn sum(from: u64, to: u64) -> u64 {
    let below = |end: u64| u128::from(end) * u128::from(end.saturating_sub(1)) / 2;
    (below(to) - below(from)) as u64
}

/// Requests huge pages before the first write, so that TLB misses do not distort the measurement. Systems without huge
/// pages ignore the request.
#[cfg(target_os = "linux")]
fn huge_pages(numbers: &mut Vec<u64>) {
    const PAGE: usize = 4096;
    let spare = numbers.spare_capacity_mut();
    let address = spare.as_mut_ptr() as usize;
    let skip = address.next_multiple_of(PAGE) - address;
    let len = std::mem::size_of_val(spare).saturating_sub(skip);
    // SAFETY: the range lies within the vector's own allocation, and the advice changes no content.
    unsafe { libc::madvise((address + skip) as *mut libc::c_void, len, libc::MADV_HUGEPAGE) };
}

#[cfg(not(target_os = "linux"))]
fn huge_pages(_numbers: &mut Vec<u64>) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_are_the_whole_and_come_round_again() {
        for bytes in [512, 4096, 100_000, 1 << 20] {
            let mut buffer = Buffer::filled(bytes);
            let count = buffer.whole().0.len();
            let mut read = Vec::new();
            while read.len() < count {
                let (numbers, expected) = buffer.part();
                assert_eq!(numbers.iter().sum::<u64>(), expected, "{bytes} bytes");
                read.extend_from_slice(numbers);
            }
            assert!(read.iter().copied().eq(0..count as u64), "{bytes} bytes");
            assert_eq!(buffer.part().0[0], 0, "{bytes} bytes");
        }
    }
}
