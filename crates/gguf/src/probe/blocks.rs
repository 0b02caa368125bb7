//! Random quantised blocks, written directly. No quantiser and no floating-point library is involved, so the bytes
//! are the same on every machine.

use random_weights::{Xoshiro, f16_bits};

use crate::ggml_type::GgmlType;

/// Layout of a type's blocks: the random bytes, and the position of the scale.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recipe {
    pub(super) kind: GgmlType,
    layout: Layout,
    /// Root mean square of a random block's values when its scale is 1.
    rms: f64,
}

#[derive(Clone, Copy, Debug)]
enum Layout {
    /// Plain numbers, uniformly distributed.
    F32,
    F16,
    Bf16,
    /// Scale `d` at this byte, all other bytes random. The values have a mean of (nearly) zero for any bits.
    Scaled(usize),
    /// Like [`Scaled`](Self::Scaled), with bytes in this range limited to -127..=127, as in a quantiser's output.
    Symmetric(usize, usize),
    /// Q4_1, Q5_1: `d` and `m = -mid * d`.
    Offset {
        mid: f64,
    },
    /// Q2_K: scales and minima of 4 bits, equal in each byte, with `dmin = 1.5 d`.
    Q2K,
    /// Q4_K and Q5_K: scales and minima of 6 bits, equal, with `dmin = mid * d`.
    Superblock {
        mid: f64,
    },
    /// Q6_K: scales of 8 bits limited to -32..=31, with `d` at the end.
    Q6K,
    /// MXFP4: an exponent instead of `d`.
    Mxfp4,
}

const fn recipe(id: u32, layout: Layout, rms: f64) -> Recipe {
    Recipe { kind: GgmlType::known(id), layout, rms }
}

// Second moments of the random values q, about a centre:
// - uniform in 0..16: 21.25 about the mean, 21.5 about 8
// - uniform in 0..32: 85.25 about the mean, 85.5 about 16
// - uniform in 0..64: 341.5 about 32
// - uniform in 0..8: 5.5 about 4
//
// The second moments of scales are 1333.5 for 0..64 and 77.5 for 0..16. The second moments of the IQ types' grids
// come from ggml-common.h (536, 586, 597, 952, 57.7, 0.594).
pub(super) const F32: Recipe = recipe(0, Layout::F32, 1.0);
pub(super) const F16: Recipe = recipe(1, Layout::F16, 1.0);
pub(super) const BF16: Recipe = recipe(30, Layout::Bf16, 1.0);
pub(super) const Q4_0: Recipe = recipe(2, Layout::Scaled(0), 4.637);
pub(super) const Q4_1: Recipe = recipe(3, Layout::Offset { mid: 7.5 }, 4.610);
pub(super) const Q5_0: Recipe = recipe(6, Layout::Scaled(0), 9.247);
pub(super) const Q5_1: Recipe = recipe(7, Layout::Offset { mid: 15.5 }, 9.233);
pub(super) const Q8_0: Recipe = recipe(8, Layout::Symmetric(0, 2), 73.6);
pub(super) const Q2_K: Recipe = recipe(10, Layout::Q2K, 9.843);
pub(super) const Q3_K: Recipe = recipe(11, Layout::Scaled(108), 43.34);
pub(super) const Q4_K: Recipe = recipe(12, Layout::Superblock { mid: 7.5 }, 168.3);
pub(super) const Q5_K: Recipe = recipe(13, Layout::Superblock { mid: 15.5 }, 337.2);
pub(super) const Q6_K: Recipe = recipe(14, Layout::Q6K, 341.5);
pub(super) const IQ2_XXS: Recipe = recipe(16, Layout::Scaled(0), 53.4);
pub(super) const IQ2_XS: Recipe = recipe(17, Layout::Scaled(0), 55.9);
pub(super) const IQ3_XXS: Recipe = recipe(18, Layout::Scaled(0), 142.4);
pub(super) const IQ1_S: Recipe = recipe(19, Layout::Scaled(0), 7.2);
pub(super) const IQ4_NL: Recipe = recipe(20, Layout::Scaled(0), 67.4);
pub(super) const IQ3_S: Recipe = recipe(21, Layout::Scaled(0), 140.2);
pub(super) const IQ2_S: Recipe = recipe(22, Layout::Scaled(0), 56.4);
pub(super) const IQ4_XS: Recipe = recipe(23, Layout::Scaled(0), 1246.2);
pub(super) const MXFP4: Recipe = recipe(39, Layout::Mxfp4, 5.852);

impl Recipe {
    /// Appends blocks of `elements` values with standard deviation `std`.
    pub(super) fn fill(self, elements: u64, std: f64, random: &mut Xoshiro, out: &mut Vec<u8>) {
        let blocks = elements / self.kind.block_elements();
        let bytes = self.kind.bytes_of(self.kind.block_elements()).unwrap_or(0) as usize;
        for _ in 0..blocks {
            let start = out.len();
            while out.len() < start + bytes {
                let word = random.next_u64().to_le_bytes();
                out.extend(&word[..(start + bytes - out.len()).min(8)]);
            }
            self.shape(&mut out[start..], std);
        }
    }

    /// Turns the random bytes in `block` into a block of this type.
    fn shape(self, block: &mut [u8], std: f64) {
        let d = std / self.rms;
        let mut half = |at: usize, value: f64| put(block, at, f16_bits(value as f32));
        match self.layout {
            Layout::F32 => {
                let value = uniform([block[0], block[1]], std).to_le_bytes();
                block.copy_from_slice(&value);
            }
            Layout::F16 => put(block, 0, f16_bits(uniform([block[0], block[1]], std))),
            // Truncated instead of rounded, which is equally good for random numbers.
            Layout::Bf16 => {
                let bits = uniform([block[0], block[1]], std).to_bits();
                put(block, 0, (bits >> 16) as u16);
            }
            Layout::Scaled(at) => half(at, d),
            Layout::Symmetric(at, values) => {
                half(at, d);
                for byte in &mut block[values..] {
                    *byte = byte.cast_signed().max(-127).cast_unsigned();
                }
            }
            Layout::Offset { mid } => {
                half(0, d);
                half(2, -mid * d);
            }
            Layout::Q2K => {
                half(80, d);
                half(82, 1.5 * d);
                for byte in &mut block[..16] {
                    *byte = twice(*byte);
                }
            }
            Layout::Superblock { mid } => {
                half(0, d);
                half(2, mid * d);
                // Bytes 4..8 contain four scales, with two bits each of the later four scales above them. Bytes 8..12
                // contain the minima in the same way, and bytes 12..16 contain the low bits of the later four scales
                // and minima.
                block.copy_within(4..8, 8);
                for byte in &mut block[12..16] {
                    *byte = twice(*byte);
                }
            }
            Layout::Q6K => {
                half(208, d);
                for byte in &mut block[192..208] {
                    *byte = (*byte & 63).wrapping_sub(32);
                }
            }
            // A value is its code times 2^(exponent - 128).
            Layout::Mxfp4 => block[0] = (128.0 + d.log2().round()).clamp(1.0, 254.0) as u8,
        }
    }
}

/// Copies the low four bits to the high four bits.
fn twice(byte: u8) -> u8 {
    byte & 15 | byte << 4
}

fn put(block: &mut [u8], at: usize, half: u16) {
    block[at..at + 2].copy_from_slice(&half.to_le_bytes());
}

/// Returns a uniformly distributed number with mean 0 and standard deviation `std`.
fn uniform(bits: [u8; 2], std: f64) -> f32 {
    let unit = (f64::from(u16::from_le_bytes(bits)) + 0.5) / 32_768.0 - 1.0;
    (unit * std * 3f64.sqrt()) as f32
}
