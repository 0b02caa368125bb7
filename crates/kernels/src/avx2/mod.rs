//! Kernels for CPUs with AVX2, FMA and F16C.

#![expect(
    clippy::needless_range_loop,
    reason = "The number of a half is the register index in several arrays."
)]

pub mod attention;
pub mod direct;
pub mod expand;
pub mod floats;
pub mod sums;
pub mod tile;

use std::mem::MaybeUninit;

use crate::activations::{ColumnLayout, quantise};
use crate::format::{FORMATS, Format};
use crate::instruction_set::InstructionSet;
use crate::kernel::{Column, Functions, Target, store, zeros};
use crate::panel::{BlockParts, ROWS};

/// Number of columns that share an expanded chunk. Their outputs and half of their codes fit into the caches, and a
/// batch of 128 columns needs only one pass over the weights.
pub const COLUMNS: usize = 43 * TILE;
/// Maximum number of columns for which products need no expanded blocks.
pub const DIRECT: usize = 3;
/// Number of columns of a tile. Their sums, before and after scaling, fill the registers.
const TILE: usize = 3;
/// Number of elements of a row that are expanded together: 16 KB of codes, half of a first-level cache.
pub const CHUNK: usize = 1024;
/// Number of elements of a row that are expanded together to 16-bit codes.
const WIDE_CHUNK: usize = 512;

/// The functions for AVX2.
pub struct Avx2;

impl Functions for Avx2 {
    const SET: InstructionSet = InstructionSet::Avx2;
    const COLUMNS: usize = COLUMNS;

    unsafe fn multiply<const F: usize>(panel: *const u8, k: usize, rows: usize, targets: &[Target]) {
        // SAFETY: the caller's contract.
        unsafe { multiply::<F>(panel, k, rows, targets) }
    }

    unsafe fn multiply_floats<const F: u32>(panel: *const u8, k: usize, rows: usize, targets: &[Target]) {
        // SAFETY: the caller's contract.
        unsafe { floats::multiply::<F>(panel, k, rows, targets) }
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn quantise<const F: usize>(x: &[f32], from: usize, to: usize, column: *mut u8) {
        // SAFETY: the caller's contract.
        unsafe { quantise(Self::SET, FORMATS[F], x, from, to, column) };
    }
}

/// Expands the `$count` blocks of `$panel` in chunks of `$together` blocks of the type `$block`. Runs `$call` for each
/// chunk, with its expanded blocks and with the number of its first block.
macro_rules! expanded {
    (
        $panel:expr, $format:expr, $count:expr, $block:ty, $together:expr, $expand:expr,
        |$blocks:ident, $first:ident| $call:expr
    ) => {{
        const TOGETHER: usize = $together;
        let mut memory = [const { MaybeUninit::<$block>::uninit() }; TOGETHER];
        for $first in (0..$count).step_by(TOGETHER) {
            let count = TOGETHER.min($count - $first);
            for (at, block) in memory[..count].iter_mut().enumerate() {
                // SAFETY: the panel has all blocks.
                unsafe {
                    $expand($panel.add(($first + at) * BlockParts::of($format).bytes), block.as_mut_ptr())
                };
            }
            // SAFETY: the tiles read only the parts of the first `count` blocks that have been written.
            let $blocks = unsafe { std::slice::from_raw_parts(memory.as_ptr().cast::<$block>(), count) };
            $call
        }
    }};
}

pub(crate) use expanded;

/// # Safety
/// Same as for [`Functions::multiply`]; the CPU must have AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn multiply<const F: usize>(panel: *const u8, k: usize, rows: usize, targets: &[Target]) {
    let format = const { FORMATS[F] };
    let layout = ColumnLayout::of(InstructionSet::Avx2, format, k);
    let len = format.block_len();
    let mut outputs = [MaybeUninit::uninit(); COLUMNS];
    let outputs = zeros(&mut outputs, targets.len());
    // SAFETY: the targets' columns have the layout.
    let column = |target: &Target, first: usize| unsafe { Column::of(&layout, format, target, first) };

    macro_rules! direct {
        (|$packed:ident, $at:ident, $columns:ident| $($call:tt)+) => {{
            macro_rules! columns {
                ($c:literal) => {{
                    const C: usize = $c;
                    let $columns: &[Column; C] = &std::array::from_fn(|at| column(&targets[at], 0));
                    for $at in 0..k / len {
                        // SAFETY: the panel has all blocks; the columns and outputs belong to it.
                        unsafe {
                            let $packed = panel.add($at * BlockParts::of(format).bytes);
                            $($call)+
                        }
                    }
                }};
            }
            match targets.len() {
                1 => columns!(1),
                2 => columns!(2),
                _ => columns!(3),
            }
        }};
    }
    if targets.len() <= DIRECT {
        match format {
            Format::Q4K => {
                direct!(|packed, at, columns| direct::super_block::<F, C, 8>(packed, at, columns, outputs))
            }
            Format::Q5K | Format::Q2K | Format::Q3K => {
                direct!(|packed, at, columns| direct::super_block::<F, C, 4>(packed, at, columns, outputs))
            }
            Format::Q6K => {
                direct!(|packed, at, columns| direct::super_block::<F, C, 2>(packed, at, columns, outputs))
            }
            Format::Iq4Xs => {
                direct!(|packed, at, columns| direct::wide_super_block::<F, C>(packed, at, columns, outputs))
            }
            Format::Q4_0 | Format::Q4_1 => {
                direct!(|packed, at, columns| direct::small_block::<F, C, 8>(packed, at, columns, outputs))
            }
            Format::Q5_0 | Format::Q5_1 | Format::Mxfp4 => {
                direct!(|packed, at, columns| direct::small_block::<F, C, 4>(packed, at, columns, outputs))
            }
            Format::Q8_0 | Format::Iq4Nl => {
                direct!(|packed, at, columns| direct::small_block::<F, C, 0>(packed, at, columns, outputs))
            }
        }
        // SAFETY: the caller allows `rows` outputs.
        unsafe { store(targets, outputs, 0..rows) };
        return;
    }

    // Expands the blocks chunk by chunk, and runs `$call` on each tile of columns.
    macro_rules! chunks {
        ($block:ty, $chunk:expr, $expand:expr, |$blocks:ident, $columns:ident, $out:ident| $($call:tt)+) => {{
            expanded!(panel, format, k / len, $block, $chunk, $expand, |$blocks, first| {
                for (tile, targets) in targets.chunks(TILE).enumerate() {
                    // SAFETY: there is an array of outputs for each target.
                    let $out = unsafe { outputs.add(TILE * ROWS * tile) };
                    macro_rules! columns {
                        ($c:literal) => {{
                            const C: usize = $c;
                            let $columns: &[Column; C] = &std::array::from_fn(|at| column(&targets[at], first));
                            // SAFETY: blocks, columns and outputs belong together.
                            unsafe { $($call)+ }
                        }};
                    }
                    match targets.len() {
                        1 => columns!(1),
                        2 => columns!(2),
                        _ => columns!(3),
                    }
                }
            });
        }};
    }
    match format {
        Format::Q4K => {
            chunks!(expand::SuperBlock, CHUNK / 256, expand::super_block::<F, 0>, |blocks, columns, out| {
                tile::super_blocks::<F, C, 8>(blocks, columns, out)
            })
        }
        Format::Q5K | Format::Q2K | Format::Q3K => {
            chunks!(expand::SuperBlock, CHUNK / 256, expand::super_block::<F, 0>, |blocks, columns, out| {
                tile::super_blocks::<F, C, 4>(blocks, columns, out)
            })
        }
        Format::Q6K => {
            chunks!(expand::SuperBlock, CHUNK / 256, expand::super_block::<F, 0>, |blocks, columns, out| {
                tile::super_blocks::<F, C, 2>(blocks, columns, out)
            })
        }
        Format::Iq4Xs => chunks!(
            expand::WideSuperBlock,
            WIDE_CHUNK / 256,
            expand::wide_super_block::<F>,
            |blocks, columns, out| tile::wide_super_blocks::<C>(blocks, columns, out)
        ),
        Format::Q4_0 | Format::Q4_1 => {
            chunks!(expand::SmallBlock, CHUNK / 32, expand::small_block::<F>, |blocks, columns, out| {
                tile::small_blocks::<F, C, 8>(blocks, columns, out)
            })
        }
        Format::Q5_0 | Format::Q5_1 | Format::Mxfp4 => {
            chunks!(expand::SmallBlock, CHUNK / 32, expand::small_block::<F>, |blocks, columns, out| {
                tile::small_blocks::<F, C, 4>(blocks, columns, out)
            })
        }
        Format::Q8_0 | Format::Iq4Nl => chunks!(
            expand::WideSmallBlock,
            WIDE_CHUNK / 32,
            expand::wide_small_block::<F>,
            |blocks, columns, out| tile::wide_small_blocks::<C>(blocks, columns, out)
        ),
    }
    // SAFETY: the caller allows `rows` outputs.
    unsafe { store(targets, outputs, 0..rows) };
}
