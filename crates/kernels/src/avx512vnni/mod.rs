//! Kernels for CPUs with AVX-512 and VNNI.
//!
//! A group of four elements in sixteen rows fills one register. An instruction multiplies its unsigned bytes by
//! four activations, which it reads from memory and repeats for each row, and adds the products of each row to a
//! 32-bit sum. Codes go directly from the packed block to registers, and all columns of a tile share them.

pub mod attention;
mod floats;
mod tile;
pub mod weights;

use std::arch::x86_64::__cpuid;
use std::mem::MaybeUninit;
use std::sync::LazyLock;

use crate::activations::{ColumnLayout, quantise};
use crate::format::FORMATS;
use crate::instruction_set::InstructionSet;
use crate::kernel::{Column, Functions, Target, float_format, parts, store, zeros};
use crate::panel::{BlockParts, ROWS};

use tile::Reading;

/// Number of columns that share a chunk of weights: sixteen tiles. A tile has at most eight columns. Two sums for each
/// column fill half of the vector registers, and the columns' addresses fill half of the general registers.
const COLUMNS: usize = 16 * 8;
/// Number of elements of a row that are multiplied by all columns before the next elements: less than half of a
/// first-level cache.
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

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn quantise<const F: usize>(x: &[f32], from: usize, to: usize, column: *mut u8) {
        // SAFETY: the caller's contract.
        unsafe { quantise(Self::SET, FORMATS[F], x, from, to, column) };
    }
}

/// True if Intel made this CPU.
fn is_intel() -> bool {
    // The vendor's name is in EBX, EDX and ECX.
    static IS_INTEL: LazyLock<bool> = LazyLock::new(|| __cpuid(0).ebx.to_le_bytes() == *b"Genu");
    *IS_INTEL
}

/// # Safety
/// Same as for [`Functions::multiply`]; the CPU must have the instruction set.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn multiply<const F: usize>(panel: *const u8, k: usize, rows: usize, targets: &[Target]) {
    let format = const { FORMATS[F] };
    let layout = ColumnLayout::of(InstructionSet::Avx512Vnni, format, k);
    let blocks = k / format.block_len();
    let together = CHUNK / format.block_len();
    let reading = if is_intel() { Reading::Ahead } else { Reading::InOrder };
    let mut outputs = [MaybeUninit::uninit(); COLUMNS];
    let out = zeros(&mut outputs, targets.len());
    for first in (0..blocks).step_by(together) {
        let count = together.min(blocks - first);
        // SAFETY: the panel has all blocks; columns and outputs belong to it.
        unsafe {
            let packed = panel.add(first * BlockParts::of(format).bytes);
            parts!(targets.len(), [1, 2, 3, 4, 5, 6, 7, 8], |start, C| {
                let columns: &[Column; C] =
                    &std::array::from_fn(|at| Column::of(&layout, format, &targets[start + at], first));
                let out = out.add(ROWS * start);
                if format.has_super_blocks() {
                    tile::super_blocks::<F, C>(reading, packed, count, columns, out);
                } else {
                    tile::small_blocks::<F, C>(reading, packed, count, columns, out);
                }
            });
        }
    }
    // SAFETY: the caller allows `rows` outputs.
    unsafe { store(targets, out, 0..rows) };
}

/// # Safety
/// Same as for [`Functions::multiply_floats`]; the CPU must have the instruction set.
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
            parts!(targets.len(), [1, 2, 3, 4, 5, 6, 7, 8], |start, C| {
                floats::tile::<F, C>(panel, first, count, &targets[start..], out.add(ROWS * start))
            });
        }
    }
    // SAFETY: the caller allows `rows` outputs.
    unsafe { store(targets, out, 0..rows) };
}
