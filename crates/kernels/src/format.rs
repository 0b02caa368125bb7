//! Quantisation formats: the blocks of a GGUF file, split into codes, scales and offsets.
//!
//! The layouts match `block_q4_0` and its siblings in `ggml/src/ggml-common.h`, and the elements have the same order as
//! in `dequantize_row_*` in `ggml/src/ggml-quants.c` (ggml 0.26.0).

#![expect(clippy::needless_range_loop, reason = "The same position in a block is used in several arrays.")]

/// Quantisation format of a weight matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "The variants are named after the formats in GGUF.")]
pub enum Format {
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
    Iq4Nl,
    Iq4Xs,
    Mxfp4,
}

/// All formats, for tests and tables.
pub const FORMATS: [Format; 13] = [
    Format::Q4_0,
    Format::Q4_1,
    Format::Q5_0,
    Format::Q5_1,
    Format::Q8_0,
    Format::Q2K,
    Format::Q3K,
    Format::Q4K,
    Format::Q5K,
    Format::Q6K,
    Format::Iq4Nl,
    Format::Iq4Xs,
    Format::Mxfp4,
];

/// Number of elements in a super-block of a K-quant, which has integer scales for its sub-blocks.
pub const SUPER: usize = 256;
/// Number of elements in a block of a format with one float scale for each block.
pub const SMALL: usize = 32;

/// Values that the codes of `IQ4_NL` and `IQ4_XS` represent (`kvalues_iq4nl`).
pub const IQ4_VALUES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
/// Twice the values that the codes of `MXFP4` represent (`kvalues_mxfp4`).
pub const MXFP4_VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// A block of one row, split into its parts. An element's value is
/// `d * scales[sub] * (value(code) - offset) - m * mins[sub]`, where `sub` is the element's sub-block.
///
/// A format with blocks of [`SMALL`] elements uses only the first codes, `d` and `m`. An element's value is
/// `d * (value(code) - offset) + m`, where `m` is 0 if the format has no minima.
#[derive(Clone, Debug, PartialEq)]
pub struct Block {
    /// Codes as stored, without a sign (8-bit codes: two's complement).
    pub codes: [u8; SUPER],
    /// Integer scale of each sub-block.
    pub scales: [i8; 16],
    /// Integer minimum of each sub-block.
    pub mins: [u8; 16],
    /// Bits of the float scale: an F16, or the exponent byte of `MXFP4`.
    pub d: u16,
    /// Bits of the F16 scale of the minima.
    pub m: u16,
}

impl Block {
    /// A block of zeros.
    pub const ZERO: Self = Self { codes: [0; SUPER], scales: [0; 16], mins: [0; 16], d: 0, m: 0 };
}

impl Format {
    /// Returns the format with the number `id` in GGUF files and in ggml (`enum ggml_type`).
    pub fn of_ggml(id: u32) -> Option<Self> {
        FORMATS.into_iter().find(|format| format.ggml() == id)
    }

    /// Returns the format's number in GGUF files and in ggml (`enum ggml_type`).
    pub const fn ggml(self) -> u32 {
        match self {
            Self::Q4_0 => 2,
            Self::Q4_1 => 3,
            Self::Q5_0 => 6,
            Self::Q5_1 => 7,
            Self::Q8_0 => 8,
            Self::Q2K => 10,
            Self::Q3K => 11,
            Self::Q4K => 12,
            Self::Q5K => 13,
            Self::Q6K => 14,
            Self::Iq4Nl => 20,
            Self::Iq4Xs => 23,
            Self::Mxfp4 => 39,
        }
    }

    /// Returns the number of elements in a block.
    pub const fn block_len(self) -> usize {
        if self.has_super_blocks() { SUPER } else { SMALL }
    }

    /// True for formats with integer scales in blocks of 256 elements.
    pub const fn has_super_blocks(self) -> bool {
        matches!(self, Self::Q2K | Self::Q3K | Self::Q4K | Self::Q5K | Self::Q6K | Self::Iq4Xs)
    }

    /// Returns the size of a block in a GGUF file, in bytes.
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::Q4_0 | Self::Iq4Nl => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
            Self::Q2K => 84,
            Self::Q3K => 110,
            Self::Q4K => 144,
            Self::Q5K => 176,
            Self::Q6K => 210,
            Self::Iq4Xs => 136,
            Self::Mxfp4 => 17,
        }
    }

    /// Returns the number of elements that share an integer scale; for small blocks, the block's length.
    pub const fn sub_len(self) -> usize {
        match self {
            Self::Q2K | Self::Q3K | Self::Q6K => 16,
            _ => 32,
        }
    }

    /// Returns the number that is subtracted from each code; 0 for formats with signed values or minima.
    pub const fn offset(self) -> i32 {
        match self {
            Self::Q4_0 => 8,
            Self::Q5_0 => 16,
            Self::Q3K => 4,
            Self::Q6K => 32,
            _ => 0,
        }
    }

    /// True for formats whose values are signed and need all 8 bits.
    pub const fn has_signed_bytes(self) -> bool {
        matches!(self, Self::Q8_0 | Self::Iq4Nl | Self::Iq4Xs)
    }

    /// True for formats whose blocks have a minimum that is subtracted or added.
    pub const fn has_mins(self) -> bool {
        matches!(self, Self::Q4_1 | Self::Q5_1 | Self::Q2K | Self::Q4K | Self::Q5K)
    }

    /// Returns the integer that `code` represents, before the offset is subtracted.
    pub const fn value(self, code: u8) -> i32 {
        match self {
            Self::Iq4Nl | Self::Iq4Xs => IQ4_VALUES[code as usize] as i32,
            Self::Mxfp4 => MXFP4_VALUES[code as usize] as i32,
            Self::Q8_0 => code as i8 as i32,
            _ => code as i32,
        }
    }

    /// Returns the float that the bits of [`Block::d`] represent.
    pub fn scale(self, bits: u16) -> f32 {
        match self {
            Self::Mxfp4 => e8m0_half(bits as u8),
            _ => f16_to_f32(bits),
        }
    }

    /// Decodes the block that starts at `bytes[0]`.
    pub fn decode(self, bytes: &[u8]) -> Block {
        let mut block = Block::ZERO;
        self.decode_into(bytes, &mut block);
        block
    }

    /// Decodes the block that starts at `bytes[0]`. Writes the parts of `block` that the format has.
    // Inlined, so that packing is compiled for each format, and for the caller's instruction set.
    #[inline(always)]
    pub fn decode_into(self, bytes: &[u8], block: &mut Block) {
        let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let codes = &mut block.codes;
        match self {
            Self::Q4_0 | Self::Iq4Nl => {
                block.d = half(0);
                nibbles(&bytes[2..18], codes);
            }
            Self::Q4_1 => {
                (block.d, block.m) = (half(0), half(2));
                nibbles(&bytes[4..20], codes);
            }
            Self::Mxfp4 => {
                block.d = u16::from(bytes[0]);
                nibbles(&bytes[1..17], codes);
            }
            Self::Q5_0 | Self::Q5_1 => {
                let high = if self == Self::Q5_0 { 2 } else { 4 };
                block.d = half(0);
                if self == Self::Q5_1 {
                    block.m = half(2);
                }
                nibbles(&bytes[high + 4..high + 20], codes);
                for (at, code) in codes[..SMALL].iter_mut().enumerate() {
                    *code |= (bytes[high + at / 8] >> (at % 8) & 1) << 4;
                }
            }
            Self::Q8_0 => {
                block.d = half(0);
                codes[..SMALL].copy_from_slice(&bytes[2..34]);
            }
            Self::Q2K => {
                for sub in 0..16 {
                    block.scales[sub] = (bytes[sub] & 15) as i8;
                    block.mins[sub] = bytes[sub] >> 4;
                }
                pairs(&bytes[16..80], codes);
                (block.d, block.m) = (half(80), half(82));
            }
            Self::Q3K => {
                pairs(&bytes[32..96], codes);
                for (part, codes) in codes.chunks_exact_mut(32).enumerate() {
                    for (code, byte) in codes.iter_mut().zip(&bytes[..32]) {
                        *code |= (byte >> part & 1) << 2;
                    }
                }
                let scales = &bytes[96..108];
                for sub in 0..16 {
                    let low = scales[sub % 8] >> (4 * (sub / 8)) & 15;
                    let high = scales[8 + sub % 4] >> (2 * (sub / 4)) & 3;
                    block.scales[sub] = (low | high << 4) as i8 - 32;
                }
                block.d = half(108);
            }
            Self::Q4K | Self::Q5K => {
                (block.d, block.m) = (half(0), half(2));
                let scales = &bytes[4..16];
                for sub in 0..4 {
                    block.scales[sub] = (scales[sub] & 63) as i8;
                    block.mins[sub] = scales[sub + 4] & 63;
                    block.scales[sub + 4] = (scales[sub + 8] & 15 | scales[sub] >> 6 << 4) as i8;
                    block.mins[sub + 4] = scales[sub + 8] >> 4 | scales[sub + 4] >> 6 << 4;
                }
                let low = if self == Self::Q4K { 16 } else { 48 };
                for (part, out) in codes.chunks_exact_mut(64).enumerate() {
                    let from = &bytes[low + 32 * part..low + 32 * part + 32];
                    for at in 0..32 {
                        out[at] = from[at] & 15;
                        out[at + 32] = from[at] >> 4;
                    }
                }
                if self == Self::Q5K {
                    for (part, codes) in codes.chunks_exact_mut(32).enumerate() {
                        for (code, byte) in codes.iter_mut().zip(&bytes[16..48]) {
                            *code |= (byte >> part & 1) << 4;
                        }
                    }
                }
            }
            Self::Q6K => {
                for (half, out) in codes.chunks_exact_mut(128).enumerate() {
                    let low = &bytes[64 * half..64 * half + 64];
                    let high = &bytes[128 + 32 * half..160 + 32 * half];
                    for at in 0..32 {
                        out[at] = low[at] & 15 | (high[at] & 3) << 4;
                        out[at + 32] = low[at + 32] & 15 | (high[at] >> 2 & 3) << 4;
                        out[at + 64] = low[at] >> 4 | (high[at] >> 4 & 3) << 4;
                        out[at + 96] = low[at + 32] >> 4 | high[at] >> 6 << 4;
                    }
                }
                for sub in 0..16 {
                    block.scales[sub] = bytes[192 + sub] as i8;
                }
                block.d = half(208);
            }
            Self::Iq4Xs => {
                block.d = half(0);
                let high = half(2);
                for sub in 0..8 {
                    let low = bytes[4 + sub / 2] >> (4 * (sub % 2)) & 15;
                    block.scales[sub] = (low | ((high >> (2 * sub) & 3) as u8) << 4) as i8 - 32;
                    nibbles(&bytes[8 + 16 * sub..24 + 16 * sub], &mut codes[32 * sub..]);
                }
            }
        }
    }

    /// Writes `block` into `bytes` in the layout of a GGUF file: the inverse of [`Format::decode`].
    pub fn encode(self, block: &Block, bytes: &mut [u8]) {
        let codes = &block.codes;
        let put =
            |bytes: &mut [u8], at: usize, bits: u16| bytes[at..at + 2].copy_from_slice(&bits.to_le_bytes());
        bytes[..self.block_bytes()].fill(0);
        match self {
            Self::Q4_0 | Self::Iq4Nl => {
                put(bytes, 0, block.d);
                join_nibbles(codes, &mut bytes[2..18]);
            }
            Self::Q4_1 => {
                put(bytes, 0, block.d);
                put(bytes, 2, block.m);
                join_nibbles(codes, &mut bytes[4..20]);
            }
            Self::Mxfp4 => {
                bytes[0] = block.d as u8;
                join_nibbles(codes, &mut bytes[1..17]);
            }
            Self::Q5_0 | Self::Q5_1 => {
                let high = if self == Self::Q5_0 { 2 } else { 4 };
                put(bytes, 0, block.d);
                if self == Self::Q5_1 {
                    put(bytes, 2, block.m);
                }
                join_nibbles(codes, &mut bytes[high + 4..high + 20]);
                for (at, code) in codes[..SMALL].iter().enumerate() {
                    bytes[high + at / 8] |= (code >> 4 & 1) << (at % 8);
                }
            }
            Self::Q8_0 => {
                put(bytes, 0, block.d);
                bytes[2..34].copy_from_slice(&codes[..SMALL]);
            }
            Self::Q2K => {
                for sub in 0..16 {
                    bytes[sub] = block.scales[sub] as u8 | block.mins[sub] << 4;
                }
                join_pairs(codes, &mut bytes[16..80]);
                put(bytes, 80, block.d);
                put(bytes, 82, block.m);
            }
            Self::Q3K => {
                join_pairs(codes, &mut bytes[32..96]);
                for (at, code) in codes.iter().enumerate() {
                    bytes[at % 32] |= (code >> 2 & 1) << (at / 32);
                }
                for sub in 0..16 {
                    let scale = (block.scales[sub] + 32) as u8;
                    bytes[96 + sub % 8] |= (scale & 15) << (4 * (sub / 8));
                    bytes[104 + sub % 4] |= (scale >> 4) << (2 * (sub / 4));
                }
                put(bytes, 108, block.d);
            }
            Self::Q4K | Self::Q5K => {
                put(bytes, 0, block.d);
                put(bytes, 2, block.m);
                for sub in 0..4 {
                    let (scale, min) = (block.scales[sub + 4] as u8, block.mins[sub + 4]);
                    bytes[4 + sub] = block.scales[sub] as u8 | scale >> 4 << 6;
                    bytes[8 + sub] = block.mins[sub] | min >> 4 << 6;
                    bytes[12 + sub] = scale & 15 | min << 4;
                }
                let low = if self == Self::Q4K { 16 } else { 48 };
                for (at, code) in codes.iter().enumerate() {
                    bytes[low + at / 64 * 32 + at % 32] |= (code & 15) << (at / 32 % 2 * 4);
                    if self == Self::Q5K {
                        bytes[16 + at % 32] |= (code >> 4 & 1) << (at / 32);
                    }
                }
            }
            Self::Q6K => {
                for (at, code) in codes.iter().enumerate() {
                    let (half, within) = (at / 128, at % 128);
                    bytes[64 * half + within % 64] |= (code & 15) << (within / 64 * 4);
                    bytes[128 + 32 * half + within % 32] |= (code >> 4 & 3) << (within / 32 * 2);
                }
                for sub in 0..16 {
                    bytes[192 + sub] = block.scales[sub] as u8;
                }
                put(bytes, 208, block.d);
            }
            Self::Iq4Xs => {
                put(bytes, 0, block.d);
                let mut high = 0u16;
                for sub in 0..8 {
                    let scale = (block.scales[sub] + 32) as u8;
                    bytes[4 + sub / 2] |= (scale & 15) << (4 * (sub % 2));
                    high |= u16::from(scale >> 4) << (2 * sub);
                    join_nibbles(&codes[32 * sub..], &mut bytes[8 + 16 * sub..24 + 16 * sub]);
                }
                put(bytes, 2, high);
            }
        }
    }

    /// Writes the values of `block`'s elements into `out`, which has [`Format::block_len`] elements.
    #[inline(always)]
    pub fn dequantise(self, block: &Block, out: &mut [f32]) {
        let (d, m) = (self.scale(block.d), f16_to_f32(block.m));
        let subs = out.chunks_mut(self.sub_len()).zip(block.codes.chunks(self.sub_len()));
        for (sub, (out, codes)) in subs.enumerate() {
            let (d, m) = match self.has_super_blocks() {
                true => (d * f32::from(block.scales[sub]), m * f32::from(block.mins[sub])),
                false => (d, -m),
            };
            for (x, code) in out.iter_mut().zip(codes) {
                let value = d * (self.value(*code) - self.offset()) as f32;
                *x = if self.has_mins() { value - m } else { value };
            }
        }
    }
}

/// Splits 16 bytes into 32 codes: the low nibbles first.
#[inline(always)]
fn nibbles(bytes: &[u8], codes: &mut [u8]) {
    for (at, byte) in bytes[..16].iter().enumerate() {
        codes[at] = byte & 15;
        codes[at + 16] = byte >> 4;
    }
}

/// The inverse of [`nibbles`].
fn join_nibbles(codes: &[u8], bytes: &mut [u8]) {
    for at in 0..16 {
        bytes[at] = codes[at] & 15 | codes[at + 16] << 4;
    }
}

/// Splits 64 bytes into 256 codes of two bits, in the order of `Q2_K` and `Q3_K`.
#[inline(always)]
fn pairs(bytes: &[u8], codes: &mut [u8]) {
    for (part, out) in codes.chunks_exact_mut(32).enumerate() {
        let from = &bytes[32 * (part / 4)..32 * (part / 4) + 32];
        for (code, byte) in out.iter_mut().zip(from) {
            *code = byte >> (2 * (part % 4)) & 3;
        }
    }
}

/// The inverse of [`pairs`]; other bits of the codes are ignored.
fn join_pairs(codes: &[u8], bytes: &mut [u8]) {
    for (at, code) in codes.iter().enumerate() {
        bytes[at / 128 * 32 + at % 32] |= (code & 3) << (2 * (at / 32 % 4));
    }
}

/// Converts an F16 to an F32, exactly.
pub fn f16_to_f32(bits: u16) -> f32 {
    let sign = u32::from(bits >> 15) << 31;
    let exponent = u32::from(bits >> 10 & 31);
    let fraction = u32::from(bits & 1023);
    match exponent {
        0 => {
            f32::from_bits(sign)
                + (fraction as f32 * f32::from_bits(0x3380_0000)) * if sign == 0 { 1.0 } else { -1.0 }
        }
        31 => f32::from_bits(sign | 0x7f80_0000 | fraction << 13),
        _ => f32::from_bits(sign | (exponent + 112) << 23 | fraction << 13),
    }
}

/// Returns half of the power of two with the exponent byte `e` (`ggml_e8m0_to_fp32_half`).
fn e8m0_half(e: u8) -> f32 {
    f32::from_bits(if e < 2 { 0x0020_0000 << e } else { u32::from(e - 1) << 23 })
}
