//! Kernels for CPUs with AVX-512 and VNNI.
//!
//! A group of four elements in sixteen rows is one register. An instruction multiplies its unsigned bytes with four
//! activations, which it reads from memory and repeats for each row, and adds the products of each row to a 32-bit sum.
//! Codes go from the packed block through registers; a tile's columns share them.

pub mod attention;
mod floats;
mod tile;
mod weights;

use std::mem::MaybeUninit;

use crate::activations::{ColumnLayout, quantise};
use crate::format::{FORMATS, Format};
use crate::instruction_set::InstructionSet;
use crate::kernel::{Column, Functions, Target, float_format, store};
use crate::panel::{BlockParts, ROWS};

/// Largest number of columns of a tile. Two sums for each fill half of the registers; their addresses fill half of the
/// general registers.
const TILE: usize = 8;
/// Number of columns that share a chunk of weights.
const COLUMNS: usize = 16 * TILE;
/// Number of elements of a row that all columns use before the next ones: less than half of a first-level cache.
const CHUNK: usize = 1024;

/// The functions for AVX-512 with VNNI.
pub struct Avx512Vnni;

impl Functions for Avx512Vnni {
    const SET: InstructionSet = InstructionSet::Avx512Vnni;
    const COLUMNS: usize = COLUMNS;

    unsafe fn multiply<const F: usize>(panel: *const u8, k: usize, rows: usize, targets: &[Target]) {
        // SAFETY: the caller's contract.
        unsafe { multiply::<F>(panel, k, rows, targets) }
    }

    unsafe fn multiply_floats<const F: u32>(panel: *const u8, k: usize, rows: usize, targets: &[Target]) {
        // SAFETY: the caller's contract.
        unsafe { multiply_floats::<F>(panel, k, rows, targets) }
    }

    unsafe fn quantise<const F: usize>(x: &[f32], from: usize, to: usize, column: *mut u8) {
        // SAFETY: the caller's contract.
        unsafe { quantise_for::<F>(x, from, to, column) }
    }
}

/// # Safety
/// As for [`quantise`]; the CPU must have the instruction set.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn quantise_for<const F: usize>(x: &[f32], from: usize, to: usize, column: *mut u8) {
    // SAFETY: the caller's contract.
    unsafe { quantise(InstructionSet::Avx512Vnni, FORMATS[F], x, from, to, column) };
}

/// Memory for the sums of all columns. It is filled in place, because a copy would cost as much as some products.
type Outputs = [MaybeUninit<[f32; ROWS]>; COLUMNS];

/// Sets the sums of the first `count` columns to zero, and returns the first of them.
fn zeros(outputs: &mut Outputs, count: usize) -> *mut f32 {
    for out in &mut outputs[..count] {
        out.write([0.0; ROWS]);
    }
    outputs.as_mut_ptr().cast()
}

/// Runs `$call` for the tiles of `$targets`, with the constant `C` as the number of columns. The tiles are nearly equal,
/// because a tile of few columns costs nearly as much as a larger one.
macro_rules! tiles {
    ($targets:ident, |$tile:ident, $at:ident| $call:expr) => {
        let tiles = $targets.len().div_ceil(TILE);
        for number in 0..tiles {
            let $at = $targets.len() * number / tiles;
            let $tile = &$targets[$at..$targets.len() * (number + 1) / tiles];
            macro_rules! columns {
                ($c:literal) => {{
                    const C: usize = $c;
                    $call
                }};
            }
            match $tile.len() {
                1 => columns!(1),
                2 => columns!(2),
                3 => columns!(3),
                4 => columns!(4),
                5 => columns!(5),
                6 => columns!(6),
                7 => columns!(7),
                _ => columns!(8),
            }
        }
    };
}

/// # Safety
/// As for [`Functions::multiply`]; the CPU must have the instruction set.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn multiply<const F: usize>(panel: *const u8, k: usize, rows: usize, targets: &[Target]) {
    let format: Format = const { FORMATS[F] };
    let layout = ColumnLayout::of(InstructionSet::Avx512Vnni, format, k);
    let blocks = k / format.block_len();
    let together = CHUNK / format.block_len();
    let mut outputs = [MaybeUninit::uninit(); COLUMNS];
    let out = zeros(&mut outputs, targets.len());
    for first in (0..blocks).step_by(together) {
        let count = together.min(blocks - first);
        // SAFETY: the panel has all blocks; columns and outputs belong to it.
        unsafe {
            let packed = panel.add(first * BlockParts::of(format).bytes);
            tiles!(targets, |tile, at| {
                let columns: &[Column; C] =
                    &std::array::from_fn(|at| Column::of(&layout, format, &tile[at], first));
                if format.has_super_blocks() {
                    tile::super_blocks::<F, C>(packed, count, columns, out.add(ROWS * at));
                } else {
                    tile::small_blocks::<F, C>(packed, count, columns, out.add(ROWS * at));
                }
            });
        }
    }
    // SAFETY: the caller allows `rows` outputs.
    unsafe { store(targets, out, rows) };
}

/// # Safety
/// As for [`Functions::multiply_floats`]; the CPU must have the instruction set.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn multiply_floats<const F: u32>(panel: *const u8, k: usize, rows: usize, targets: &[Target]) {
    let bytes = const { float_format(F).bytes() };
    let mut outputs = [MaybeUninit::uninit(); COLUMNS];
    let out = zeros(&mut outputs, targets.len());
    for first in (0..k).step_by(CHUNK / 2) {
        let count = (CHUNK / 2).min(k - first);
        // SAFETY: the panel has all elements; columns and outputs belong to it.
        unsafe {
            let panel = panel.add(first * ROWS * bytes);
            tiles!(targets, |tile, at| {
                floats::tile::<F, C>(panel, first, count, tile, out.add(ROWS * at))
            });
        }
    }
    // SAFETY: the caller allows `rows` outputs.
    unsafe { store(targets, out, rows) };
}
