//! Random weights and activations.

use kernels::format::Format;

/// Pseudo-random numbers (SplitMix64).
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }

    /// Returns a number from -1 to 1.
    pub fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

/// Positions of the F16 numbers in a block.
pub fn halves(format: Format) -> &'static [usize] {
    match format {
        Format::Q4_0 | Format::Iq4Nl | Format::Q5_0 | Format::Q8_0 | Format::Iq4Xs => &[0],
        Format::Q4_1 | Format::Q5_1 | Format::Q4K | Format::Q5K => &[0, 2],
        Format::Q2K => &[80, 82],
        Format::Q3K => &[108],
        Format::Q6K => &[208],
        Format::Mxfp4 => &[],
    }
}

/// Returns rows of random codes with finite scales.
pub fn rows(format: Format, k: usize, count: usize, random: &mut Random) -> Vec<u8> {
    let blocks = k / format.block_len() * count;
    let mut bytes = random.bytes(blocks * format.block_bytes());
    for block in bytes.chunks_exact_mut(format.block_bytes()) {
        for at in halves(format) {
            // An exponent of at most 15: scales up to 2 and as small as sub-normal ones, of both signs.
            block[at + 1] &= 0xbf;
        }
        if format == Format::Mxfp4 {
            block[0] = 100 + block[0] % 40;
        }
    }
    bytes
}
