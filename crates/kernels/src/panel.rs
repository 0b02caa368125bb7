//! Panels: the layout of weights that the kernels read.
//!
//! A panel contains [`ROWS`] rows of a matrix, block after block. Within a block, four consecutive elements of one row
//! form a group, and the groups of the sixteen rows are adjacent. These 64 bytes, with one code in each byte, fill two
//! AVX2 registers, one AVX-512 register, or one row of an AMX tile. Codes of fewer than 8 bits are split into planes:
//!
//! | plane | bits of a code | bytes for 16 rows × 32 elements | byte `64 * b + at` contains |
//! | --- | --- | --- | --- |
//! | byte | 8 | 512 | group `b` |
//! | nibbles | lowest 4 | 256 | groups `2 * b` and `2 * b + 1` |
//! | pairs | 2 | 128 | groups `4 * b` to `4 * b + 3` |
//! | bits | 1 | 64 | groups 0 to 7 |
//!
//! The planes of all units of 32 elements are followed by the block's integer scales, its integer minima, its float
//! scales and the float scales of its minima. Each of these has sixteen numbers, one per row.

use crate::format::{Block, Format, SMALL};

/// Number of rows in a panel. The last panel of a matrix is padded with zeros.
pub const ROWS: usize = 16;
/// Size in bytes of a group: four elements in all rows of a panel.
pub const GROUP: usize = 4 * ROWS;
/// Number of groups in a unit of 32 elements.
pub const GROUPS: usize = SMALL / 4;

/// Planes that contain the codes of a format.
#[derive(Clone, Copy, Debug)]
pub struct Planes {
    /// True if there is a plane of whole bytes.
    pub bytes: bool,
    /// True if there is a plane of the four lowest bits.
    pub nibbles: bool,
    /// True if there is a plane of two bits.
    pub pairs: bool,
    /// True if there is a plane of one bit.
    pub bits: bool,
}

impl Planes {
    /// Returns the planes of `format`.
    pub const fn of(format: Format) -> Self {
        let nibbles = !matches!(format, Format::Q8_0 | Format::Q2K | Format::Q3K);
        Self {
            bytes: matches!(format, Format::Q8_0),
            nibbles,
            pairs: matches!(format, Format::Q2K | Format::Q3K | Format::Q6K),
            bits: matches!(format, Format::Q5_0 | Format::Q5_1 | Format::Q5K | Format::Q3K),
        }
    }

    /// Returns the position, within a code, of the lowest bit in the plane of pairs.
    pub const fn pair_shift(self) -> u32 {
        if self.nibbles { 4 } else { 0 }
    }

    /// Returns the position, within a code, of the bit in the plane of bits.
    pub const fn bit_shift(self) -> u32 {
        if self.nibbles { 4 } else { 2 }
    }

    /// Returns the size in bytes of a unit: 16 rows × 32 elements.
    pub const fn unit_bytes(self) -> usize {
        let mut bytes = 0;
        if self.bytes {
            bytes += 8 * GROUP;
        }
        if self.nibbles {
            bytes += 4 * GROUP;
        }
        if self.pairs {
            bytes += 2 * GROUP;
        }
        if self.bits {
            bytes += GROUP;
        }
        bytes
    }
}

/// Positions of the parts of a packed block, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct BlockParts {
    /// Position of the integer scales; the units come before the scales.
    pub scales: usize,
    /// Position of the integer minima. `Q2_K` has them in the high nibbles of the scales.
    pub mins: usize,
    /// Position of the float scales: F16, or exponent bytes for `MXFP4`.
    pub d: usize,
    /// Position of the F16 scales of the minima.
    pub m: usize,
    /// Size of the packed block, in bytes.
    pub bytes: usize,
}

impl BlockParts {
    /// Returns the positions for `format`.
    pub const fn of(format: Format) -> Self {
        let scales = Planes::of(format).unit_bytes() * format.block_len() / SMALL;
        let subs = format.block_len() / format.sub_len();
        let integers = if format.has_super_blocks() { subs * ROWS } else { 0 };
        let mins = scales + integers;
        let separate = format.has_super_blocks() && format.has_mins() && !matches!(format, Format::Q2K);
        let d = if separate { mins + integers } else { mins };
        let m = d + if matches!(format, Format::Mxfp4) { ROWS } else { 2 * ROWS };
        let bytes = if format.has_mins() { m + 2 * ROWS } else { m };
        Self { scales, mins, d, m, bytes }
    }
}

/// Returns the size in bytes of a panel of rows with `k` elements, or `None` if `k` is not a multiple of the
/// block's length.
pub const fn panel_bytes(format: Format, k: usize) -> Option<usize> {
    if k == 0 || !k.is_multiple_of(format.block_len()) {
        return None;
    }
    Some(panel_len(format, k))
}

/// Returns the size in bytes of a panel of rows with `k` elements, a multiple of the block's length.
pub const fn panel_len(format: Format, k: usize) -> usize {
    k / format.block_len() * BlockParts::of(format).bytes
}

/// Packs up to [`ROWS`] rows of `k` elements. `rows` contains the rows in the file's layout, one after the other;
/// `panel` has the length that [`panel_bytes`] returns.
// Inlined for the same reason as [`Format::decode_into`].
#[inline(always)]
pub fn pack(format: Format, k: usize, rows: &[u8], panel: &mut [u8]) {
    let row_bytes = k / format.block_len() * format.block_bytes();
    let mut blocks = [const { Block::ZERO }; ROWS];
    for (at, packed) in panel.chunks_exact_mut(BlockParts::of(format).bytes).enumerate() {
        for (bytes, block) in rows.chunks_exact(row_bytes).zip(&mut blocks) {
            format.decode_into(&bytes[at * format.block_bytes()..][..format.block_bytes()], block);
        }
        pack_block(format, &blocks, packed);
    }
}

/// Packs one block of each of [`ROWS`] rows.
#[inline(always)]
fn pack_block(format: Format, blocks: &[Block], packed: &mut [u8]) {
    let planes = Planes::of(format);
    let parts = BlockParts::of(format);
    let unit_bytes = planes.unit_bytes();
    for unit in 0..format.block_len() / SMALL {
        let mut groups = [[0u8; GROUP]; GROUPS];
        for (row, block) in blocks.iter().enumerate() {
            for (group, codes) in groups.iter_mut().zip(block.codes[SMALL * unit..].chunks_exact(4)) {
                group[4 * row..4 * row + 4].copy_from_slice(codes);
            }
        }
        let mut out = packed[unit * unit_bytes..(unit + 1) * unit_bytes].chunks_exact_mut(GROUP);
        // Joins `each` groups into a byte, with `width` bits of each group's codes, starting at bit `shift`.
        let mut join = |each: usize, width: u32, shift: u32| {
            for (joined, out) in groups.chunks_exact(each).zip(&mut out) {
                for (at, byte) in out.iter_mut().enumerate() {
                    *byte = joined.iter().enumerate().fold(0, |byte, (place, group)| {
                        let code = u32::from(group[at]) >> shift & ((1 << width) - 1);
                        byte | (code << (place as u32 * width)) as u8
                    });
                }
            }
        };
        if planes.bytes {
            join(1, 8, 0);
        }
        if planes.nibbles {
            join(2, 4, 0);
        }
        if planes.pairs {
            join(4, 2, planes.pair_shift());
        }
        if planes.bits {
            join(8, 1, planes.bit_shift());
        }
    }
    for (row, block) in blocks.iter().enumerate() {
        if format.has_super_blocks() {
            for sub in 0..format.block_len() / format.sub_len() {
                let at = ROWS * sub + row;
                packed[parts.scales + at] = block.scales[sub] as u8;
                if format == Format::Q2K {
                    packed[parts.scales + at] |= block.mins[sub] << 4;
                } else if format.has_mins() {
                    packed[parts.mins + at] = block.mins[sub];
                }
            }
        }
        if format == Format::Mxfp4 {
            packed[parts.d + row] = block.d as u8;
        } else {
            packed[parts.d + 2 * row..parts.d + 2 * row + 2].copy_from_slice(&block.d.to_le_bytes());
        }
        if format.has_mins() {
            packed[parts.m + 2 * row..parts.m + 2 * row + 2].copy_from_slice(&block.m.to_le_bytes());
        }
    }
}

/// Reads one row's block out of a packed block.
#[inline(always)]
pub fn unpack_block(format: Format, packed: &[u8], row: usize) -> Block {
    let planes = Planes::of(format);
    let parts = BlockParts::of(format);
    let mut block = Block::ZERO;
    for (at, codes) in block.codes[..format.block_len()].chunks_exact_mut(4).enumerate() {
        let (unit, group) = (at / GROUPS, at % GROUPS);
        let mut plane = unit * planes.unit_bytes();
        let mut all = 0;
        // Reads four codes together, one per byte.
        let mut read = |each: usize, width: u32, shift: u32| {
            let at = plane + group / each * GROUP + 4 * row;
            let word = u32::from_le_bytes([packed[at], packed[at + 1], packed[at + 2], packed[at + 3]]);
            plane += GROUPS / each * GROUP;
            let mask = 0x0101_0101 * ((1 << width) - 1);
            all |= (word >> ((group % each) as u32 * width) & mask) << shift;
        };
        if planes.bytes {
            read(1, 8, 0);
        }
        if planes.nibbles {
            read(2, 4, 0);
        }
        if planes.pairs {
            read(4, 2, planes.pair_shift());
        }
        if planes.bits {
            read(8, 1, planes.bit_shift());
        }
        codes.copy_from_slice(&u32::to_le_bytes(all));
    }
    if format.has_super_blocks() {
        for sub in 0..format.block_len() / format.sub_len() {
            let at = ROWS * sub + row;
            let scale = packed[parts.scales + at];
            if format == Format::Q2K {
                (block.scales[sub], block.mins[sub]) = ((scale & 15) as i8, scale >> 4);
            } else {
                block.scales[sub] = scale as i8;
                if format.has_mins() {
                    block.mins[sub] = packed[parts.mins + at];
                }
            }
        }
    }
    let half = |at: usize| u16::from_le_bytes([packed[at], packed[at + 1]]);
    block.d =
        if format == Format::Mxfp4 { u16::from(packed[parts.d + row]) } else { half(parts.d + 2 * row) };
    if format.has_mins() {
        block.m = half(parts.m + 2 * row);
    }
    block
}

/// Writes row `row` of `panel` into `out` in the file's layout: the inverse of [`pack`].
pub fn unpack_row(format: Format, panel: &[u8], row: usize, out: &mut [u8]) {
    let blocks =
        panel.chunks_exact(BlockParts::of(format).bytes).zip(out.chunks_exact_mut(format.block_bytes()));
    for (packed, bytes) in blocks {
        format.encode(&unpack_block(format, packed, row), bytes);
    }
}

/// Writes the values of row `row` of `panel` into `out`.
#[inline(always)]
pub fn dequantise_row(format: Format, panel: &[u8], row: usize, out: &mut [f32]) {
    let blocks =
        panel.chunks_exact(BlockParts::of(format).bytes).zip(out.chunks_exact_mut(format.block_len()));
    for (packed, values) in blocks {
        format.dequantise(&unpack_block(format, packed, row), values);
    }
}
