//! Random weights and activations.

#![allow(dead_code, reason = "Each test program uses a part of the module.")]

#[cfg(target_arch = "x86_64")]
pub mod guarded;
#[cfg(target_arch = "x86_64")]
pub mod team;

use kernels::floats::FloatFormat;
use kernels::format::Format;
use kernels::instruction_set::InstructionSet;
use random_weights::Xoshiro;

/// Pseudo-random numbers.
pub struct Random(Xoshiro);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(Xoshiro::keyed(seed, [0; 2]))
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.0.next_u64() as u8).collect()
    }

    /// Returns a number from -1 to 1.
    pub fn unit(&mut self) -> f32 {
        (self.0.next_u64() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

/// Returns the instruction sets that this CPU has, and prints those that are not tested.
pub fn available() -> impl Iterator<Item = InstructionSet> {
    assert!(InstructionSet::Avx2.is_available(), "this test needs a CPU with AVX2");
    InstructionSet::ALL.into_iter().filter(|set| {
        if !set.is_available() {
            println!("not tested, because this CPU lacks it: {set:?}");
        }
        set.is_available()
    })
}

/// Returns each of `formats` with each instruction set that this CPU has.
pub fn with_each_set<F: Copy, const N: usize>(formats: [F; N]) -> impl Iterator<Item = (InstructionSet, F)> {
    available().flat_map(move |set| formats.map(|format| (set, format)))
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
            // An exponent of at most 15: scales of both signs, from subnormal up to 2.
            block[at + 1] &= 0xbf;
        }
        if format == Format::Mxfp4 {
            block[0] = 100 + block[0] % 40;
        }
    }
    bytes
}

/// Returns random floats: their bytes in the file's layout, and their values.
pub fn floats(format: FloatFormat, elements: usize, random: &mut Random) -> (Vec<u8>, Vec<f32>) {
    let mut bytes = Vec::new();
    for _ in 0..elements {
        let bits = random.unit().to_bits();
        match format {
            FloatFormat::F32 => bytes.extend(bits.to_le_bytes()),
            // The upper bits of the exponent are cleared, so that the number is finite and small.
            FloatFormat::F16 => {
                bytes.extend(((bits >> 16 & 0xb800) as u16 | (bits & 0x7ff) as u16).to_le_bytes())
            }
            FloatFormat::Bf16 => bytes.extend(((bits >> 16) as u16).to_le_bytes()),
        }
    }
    let values = bytes.chunks_exact(format.bytes()).map(|element| format.value(element)).collect();
    (bytes, values)
}
