//! Memory to read from.

/// Numbers in memory of this thread's NUMA node: whoever writes a page first, on a system that places pages at the
/// first touch, has it near.
pub struct Buffer(Vec<u64>);

impl Buffer {
    /// At least `bytes` bytes, in whole blocks of 512 bytes, each number its own index.
    pub fn filled(bytes: u64) -> Self {
        let count = (bytes / 8).next_multiple_of(64);
        let mut numbers = Vec::with_capacity(usize::try_from(count).unwrap_or(usize::MAX));
        huge_pages(&mut numbers);
        numbers.extend(0..count);
        Buffer(numbers)
    }

    /// The numbers.
    pub fn numbers(&self) -> &[u64] {
        &self.0
    }

    /// Changes one number.
    #[cfg(test)]
    pub fn change(&mut self, index: usize) {
        self.0[index] ^= 1 << 40;
    }

    /// Their sum, modulo 2^64.
    pub fn sum(&self) -> u64 {
        let count = self.0.len() as u128;
        (count * count.saturating_sub(1) / 2) as u64
    }
}

/// Asks for huge pages before the first touch, so that it is not the look-up of addresses that is measured. Where the
/// system has none, nothing changes.
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
