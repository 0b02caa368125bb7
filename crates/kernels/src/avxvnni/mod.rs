//! Kernels for CPUs with AVX2 and AVX-VNNI, but without AVX-512.
//!
//! Only products of bytes differ from AVX2: one instruction multiplies unsigned codes by signed activations, and adds
//! four products to a 32-bit sum. Float weights, attention and the expansion of blocks use the code for AVX2.

mod direct;
mod sums;
mod tile;

use std::mem::MaybeUninit;

use crate::activations::{ColumnLayout, quantise};
use crate::avx2::{CHUNK, COLUMNS, DIRECT, expand, expanded, floats};
use crate::format::{FORMATS, SMALL, SUPER};
use crate::instruction_set::InstructionSet;
use crate::kernel::{Column, Functions, Target, parts, store, zeros};
use crate::panel::{BlockParts, ROWS};

/// Functions for AVX-VNNI.
pub struct AvxVnni;

impl Functions for AvxVnni {
    const SET: InstructionSet = InstructionSet::AvxVnni;
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

/// # Safety
/// Same as for [`Functions::multiply`]; the CPU must have the instruction set.
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
unsafe fn multiply<const F: usize>(panel: *const u8, k: usize, rows: usize, targets: &[Target]) {
    let format = const { FORMATS[F] };
    let layout = ColumnLayout::of(InstructionSet::AvxVnni, format, k);
    let blocks = k / format.block_len();
    // SAFETY: the panel has all blocks.
    let packed = |at: usize| unsafe { panel.add(at * BlockParts::of(format).bytes) };
    let mut outputs = [MaybeUninit::uninit(); COLUMNS];
    let outputs = zeros(&mut outputs, targets.len());

    // Runs `$call` on each tile of columns, starting at block `$first` of the row.
    macro_rules! tiles {
        ($first:expr, |$columns:ident, $out:ident| $($call:tt)+) => {
            parts!(targets.len(), [1, 2, 3], |start, C| {
                // SAFETY: blocks, columns and outputs belong together.
                unsafe {
                    let $columns: &[Column; C] =
                        &std::array::from_fn(|at| Column::of(&layout, format, &targets[start + at], $first));
                    let $out = outputs.add(ROWS * start);
                    $($call)+
                }
            })
        };
    }
    // Expands the blocks chunk by chunk, and runs `$call` on each tile of columns.
    macro_rules! chunks {
        ($block:ty, $count:expr, $expand:expr, |$blocks:ident, $columns:ident, $out:ident| $($call:tt)+) => {{
            expanded!(panel, format, blocks, $block, $count, $expand, |$blocks, first| {
                tiles!(first, |$columns, $out| $($call)+);
            });
        }};
    }
    if targets.len() <= DIRECT {
        tiles!(0, |columns, out| for at in 0..blocks {
            if format.has_super_blocks() {
                direct::super_block::<F, C>(packed(at), at, columns, out);
            } else {
                direct::small_block::<F, C>(packed(at), at, columns, out);
            }
        });
    } else if !format.has_super_blocks() {
        chunks!(expand::SmallBlock, CHUNK / SMALL, expand::small_block::<F>, |blocks, columns, out| {
            tile::small_blocks::<F, C>(blocks, columns, out)
        });
    } else {
        let expand = expand::super_block::<F, { sums::SCALE_SHIFT }>;
        chunks!(expand::SuperBlock, CHUNK / SUPER, expand, |blocks, columns, out| {
            match format.sub_len() {
                SMALL => tile::super_blocks::<F, C, 8>(blocks, columns, out),
                _ => tile::super_blocks::<F, C, 4>(blocks, columns, out),
            }
        });
    }
    // SAFETY: the caller allows `rows` outputs.
    unsafe { store(targets, outputs, 0..rows) };
}
