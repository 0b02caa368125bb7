//! Tile instructions, written in assembly because Rust has no stable intrinsics for tiles.

use std::arch::asm;
use std::mem::MaybeUninit;

use crate::format::{Format, SMALL, SUPER};
use crate::kernel::Target;
use crate::panel::{GROUP, ROWS};
use crate::tile_config::TileConfig;

use super::expand::PLANE;

/// Number of columns in a tile of activations.
pub const TILE_COLUMNS: usize = 16;
/// A single plane of unsigned bytes.
pub const UNSIGNED: u8 = 0;
/// A single plane of signed bytes.
pub const SIGNED: u8 = 1;
/// A plane of unsigned low bytes and a plane of signed high bytes.
pub const LOW_AND_HIGH: u8 = 2;

/// Sums of a tile: sixteen columns with one sum for each row of a panel.
pub type TileSums = [[i32; ROWS]; TILE_COLUMNS];

/// Sums of four tiles.
#[repr(C, align(64))]
pub struct Sums(pub [TileSums; 4]);

/// Configured tile registers. They are released when the value is dropped, because the system saves tiles in use at
/// each context switch.
pub struct Tiles(());

impl Tiles {
    /// Configures tiles 0 to 3 for sums, 4 and 5 for activations, 6 and 7 for weights. The tiles of activations and
    /// weights contain 64 elements of super-blocks, or one small block.
    ///
    /// # Safety
    /// The CPU must have AMX, and the operating system must permit its use ([`crate::instruction_set::has_feature`]).
    pub unsafe fn configure(format: Format) -> Self {
        let elements = if format.has_super_blocks() { GROUP } else { SMALL };
        let sums = (TILE_COLUMNS as u8, GROUP as u16);
        let activations = (TILE_COLUMNS as u8, elements as u16);
        let weights = ((elements / 4) as u8, GROUP as u16);
        let config = TileConfig::new([sums, sums, sums, sums, activations, activations, weights, weights]);
        // SAFETY: the caller's contract; the configuration has the size that the instruction reads.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const config, options(nostack, readonly)) };
        Self(())
    }

    /// Sets all sums to zero.
    #[inline(always)]
    pub fn zero(&self) {
        // SAFETY: `self` proves that the tiles are configured.
        unsafe {
            asm!(
                "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                options(nostack, nomem),
            )
        };
    }

    /// Adds the products of 64 elements of a super-block and `T` tiles of columns. Products with the low plane belong to
    /// tiles 0 and 1, products with the high plane to tiles 2 and 3.
    ///
    /// # Safety
    /// `activations` must be valid for 64 elements of `T` tiles of columns, and `low` for the elements' low plane. If
    /// `P` has a high plane, the high plane must begin [`PLANE`] bytes after `low`.
    #[inline(always)]
    pub unsafe fn multiply<const T: usize, const P: u8>(&self, activations: Activations, low: *const u8) {
        macro_rules! multiply {
            ($($instruction:expr),+) => {
                asm!(
                    "tileloadd tmm4, [{a} + {stride}]",
                    "tileloadd tmm6, [{low} + {line}]",
                    $($instruction,)+
                    a = in(reg) activations.codes,
                    b = in(reg) activations.second_tile().codes,
                    low = in(reg) low,
                    high = in(reg) low.wrapping_add(PLANE),
                    stride = in(reg) activations.stride,
                    line = in(reg) GROUP,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack, readonly),
                )
            };
        }
        // SAFETY: the caller's contract; `self` proves that the tiles are configured.
        unsafe {
            match (T, P) {
                (1, UNSIGNED) => multiply!("tdpbsud tmm0, tmm4, tmm6", "/* {b} {high} */"),
                (1, SIGNED) => multiply!("tdpbssd tmm0, tmm4, tmm6", "/* {b} {high} */"),
                (1, _) => multiply!(
                    "tdpbsud tmm0, tmm4, tmm6",
                    "tileloadd tmm7, [{high} + {line}] /* {b} */",
                    "tdpbssd tmm2, tmm4, tmm7"
                ),
                (_, UNSIGNED) => multiply!(
                    "tdpbsud tmm0, tmm4, tmm6",
                    "tileloadd tmm5, [{b} + {stride}] /* {high} */",
                    "tdpbsud tmm1, tmm5, tmm6"
                ),
                (_, SIGNED) => multiply!(
                    "tdpbssd tmm0, tmm4, tmm6",
                    "tileloadd tmm5, [{b} + {stride}] /* {high} */",
                    "tdpbssd tmm1, tmm5, tmm6"
                ),
                _ => multiply!(
                    "tdpbsud tmm0, tmm4, tmm6",
                    "tileloadd tmm7, [{high} + {line}]",
                    "tdpbssd tmm2, tmm4, tmm7",
                    "tileloadd tmm5, [{b} + {stride}]",
                    "tdpbsud tmm1, tmm5, tmm6",
                    "tdpbssd tmm3, tmm5, tmm7"
                ),
            }
        }
    }

    /// Adds the products of a small block and a tile of columns to the sums in tile `N`.
    ///
    /// # Safety
    /// `activations` must be valid for a small block of a tile of columns, and `weights` for an expanded small block.
    #[inline(always)]
    pub unsafe fn multiply_small<const N: usize>(&self, activations: Activations, weights: *const u8) {
        macro_rules! multiply {
            ($sums:tt, $a:tt, $w:tt) => {
                asm!(
                    concat!("tileloadd ", $a, ", [{a} + {stride}]"),
                    concat!("tileloadd ", $w, ", [{w} + {line}]"),
                    concat!("tdpbssd ", $sums, ", ", $a, ", ", $w),
                    a = in(reg) activations.codes,
                    w = in(reg) weights,
                    stride = in(reg) activations.stride,
                    line = in(reg) GROUP,
                    out($sums) _, out($a) _, out($w) _,
                    options(nostack, readonly),
                )
            };
        }
        // SAFETY: the caller's contract; `self` proves that the tiles are configured.
        unsafe {
            match N {
                0 => multiply!("tmm0", "tmm4", "tmm6"),
                1 => multiply!("tmm1", "tmm5", "tmm7"),
                2 => multiply!("tmm2", "tmm4", "tmm6"),
                _ => multiply!("tmm3", "tmm5", "tmm7"),
            }
        }
    }

    /// Writes the sums.
    ///
    /// # Safety
    /// `sums` must be valid for writes.
    #[inline(always)]
    pub unsafe fn store(&self, sums: *mut Sums) {
        // SAFETY: `self` proves that the tiles are configured; the sums have the size of four tiles.
        unsafe {
            asm!(
                "tilestored [{sums} + {line}], tmm0",
                "tilestored [{sums} + {line} + 1024], tmm1",
                "tilestored [{sums} + {line} + 2048], tmm2",
                "tilestored [{sums} + {line} + 3072], tmm3",
                sums = in(reg) sums,
                line = in(reg) GROUP,
                options(nostack),
            )
        };
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: the CPU has AMX, because `configure` was called.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}

/// Memory for a copy of the activations of two tiles of columns.
#[repr(C, align(64))]
pub struct Copied([[u8; SUPER]; 2 * TILE_COLUMNS]);

/// Activations of one or two tiles of columns, at equal distances in memory.
#[derive(Clone, Copy)]
pub struct Activations {
    /// Codes of the first column.
    codes: *const u8,
    /// Number of bytes from one column to the next.
    stride: usize,
}

impl Activations {
    /// Returns `count` activations of the targets, starting at activation `first`. Copies them if the columns do not
    /// fill whole tiles, or if they do not have the distance `stride`.
    ///
    /// # Safety
    /// Each target's column must have these activations, and `count` must be at most 256.
    #[inline(always)]
    pub unsafe fn of(
        targets: &[Target],
        stride: Option<usize>,
        first: usize,
        count: usize,
        copied: &mut MaybeUninit<Copied>,
    ) -> Self {
        let codes = |target: &Target| target.column.wrapping_add(first);
        if let Some(stride) = stride
            && targets.len().is_multiple_of(TILE_COLUMNS)
        {
            return Self { codes: codes(&targets[0]), stride };
        }
        let copied: *mut u8 = copied.as_mut_ptr().cast();
        // The remaining columns of a tile may have any codes, because their sums are not used.
        for at in 0..targets.len().next_multiple_of(TILE_COLUMNS) {
            let target = &targets[at.min(targets.len() - 1)];
            // SAFETY: the caller's contract.
            unsafe { std::ptr::copy_nonoverlapping(codes(target), copied.add(SUPER * at), count) };
        }
        Self { codes: copied, stride: SUPER }
    }

    /// Returns the same columns, starting `elements` activations later.
    pub fn from(self, elements: usize) -> Self {
        Self { codes: self.codes.wrapping_add(elements), ..self }
    }

    /// Returns the columns of the second tile.
    fn second_tile(self) -> Self {
        Self { codes: self.codes.wrapping_add(TILE_COLUMNS * self.stride), ..self }
    }
}

/// Returns the distance between the columns of consecutive targets in bytes, or `None` if the distances differ.
pub fn stride(targets: &[Target]) -> Option<usize> {
    let distance = |pair: &[Target]| (pair[1].column as usize).checked_sub(pair[0].column as usize);
    let first = distance(targets.get(..2)?)?;
    targets.windows(2).all(|pair| distance(pair) == Some(first)).then_some(first)
}
