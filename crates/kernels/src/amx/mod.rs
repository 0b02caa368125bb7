//! Kernels for CPUs with AMX.
//!
//! A tile instruction multiplies 64 codes of sixteen rows by the activations of sixteen columns. The sums of a tile
//! cannot be multiplied by scales inside the tile registers, so the scales of sub-blocks are multiplied into the codes
//! first ([`expand`]). All columns of a product share these expanded codes. With few columns, expanding costs more than
//! tiles save, and [`Avx512Vnni`] computes the product. Both give the same bits.

mod blocks;
mod expand;
mod tiles;

use std::mem::MaybeUninit;

use crate::activations::quantise;
use crate::avx512vnni::Avx512Vnni;
use crate::format::FORMATS;
use crate::instruction_set::InstructionSet;
use crate::kernel::{Functions, Target, store, zeros};

use crate::panel::{ROWS, panel_len};
use tiles::TILE_COLUMNS;

/// Number of columns that share the expanded codes of a panel.
const COLUMNS: usize = 512;
/// Minimum number of columns for which expanding the codes pays off.
const MIN_COLUMNS: usize = 16;
/// Minimum number of columns for which a tile pays off if the codes have already been expanded.
const MIN_REST: usize = 5;

/// Number of panels that share the activations that a block brings into the second-level cache. With one panel, the
/// activations of long rows, which do not fit into this cache, would limit the speed.
const PANELS: usize = 2;

/// Functions for AMX.
pub struct Amx;

impl Functions for Amx {
    const SET: InstructionSet = InstructionSet::Amx;
    const COLUMNS: usize = COLUMNS;
    const PANELS: usize = PANELS;

    unsafe fn multiply<const F: usize>(panels: *const u8, k: usize, rows: usize, targets: &[Target]) {
        let (tiled, rest) = targets.split_at(tiled_columns(targets.len()));
        // SAFETY: the caller's contract; AMX kernels require the instruction set of `Avx512Vnni`, which reads the same
        // panels and columns. Fewer than `MIN_COLUMNS` columns remain, and the panels' outputs follow each other.
        unsafe {
            if !tiled.is_empty() {
                multiply::<F>(panels, k, rows, tiled);
            }
            if !rest.is_empty() {
                multiply_few::<F>(panels, k, rows, rest);
            }
        }
    }

    unsafe fn multiply_floats<const F: u32>(panel: *const u8, k: usize, rows: usize, targets: &[Target]) {
        for targets in targets.chunks(Avx512Vnni::COLUMNS) {
            // SAFETY: the caller's contract.
            unsafe { Avx512Vnni::multiply_floats::<F>(panel, k, rows, targets) }
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn quantise<const F: usize>(x: &[f32], from: usize, to: usize, column: *mut u8) {
        // SAFETY: the caller's contract.
        unsafe { quantise(Self::SET, FORMATS[F], x, from, to, column) };
    }
}

/// Returns the number of columns, out of `count`, that tiles multiply.
const fn tiled_columns(count: usize) -> usize {
    let rest = count % TILE_COLUMNS;
    if count < MIN_COLUMNS {
        0
    } else if rest < MIN_REST {
        count - rest
    } else {
        count
    }
}

/// Multiplies fewer than [`MIN_COLUMNS`] columns without tiles.
///
/// # Safety
/// Same as for [`Functions::multiply`].
unsafe fn multiply_few<const F: usize>(panels: *const u8, k: usize, rows: usize, targets: &[Target]) {
    let mut moved = [targets[0]; MIN_COLUMNS];
    let moved = &mut moved[..targets.len()];
    moved.copy_from_slice(targets);
    let bytes = panel_len(const { FORMATS[F] }, k);
    for (number, first) in (0..rows).step_by(ROWS).enumerate() {
        // SAFETY: the caller's contract; the outputs of a panel follow the outputs of the previous panel.
        unsafe {
            Avx512Vnni::multiply::<F>(panels.add(bytes * number), k, ROWS.min(rows - first), moved);
            for target in &mut *moved {
                target.out = target.out.add(ROWS);
            }
        }
    }
}

/// # Safety
/// Same as for [`Functions::multiply`]; the CPU must have the instruction set.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn multiply<const F: usize>(panels: *const u8, k: usize, rows: usize, targets: &[Target]) {
    let mut outputs = [MaybeUninit::uninit(); COLUMNS * PANELS];
    let out = zeros(&mut outputs, targets.len() * rows.div_ceil(ROWS));
    // SAFETY: the caller's contract; there are outputs for each panel and target.
    unsafe {
        blocks::multiply::<F>(panels, k, rows, targets, out);
        for (number, first) in (0..rows).step_by(ROWS).enumerate() {
            store(targets, out.add(ROWS * targets.len() * number), first..rows.min(first + ROWS));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_columns_are_left_to_the_vector_kernels() {
        let counts = [1, 15, 16, 20, 21, 32, 36, 37, 512];
        assert_eq!(counts.map(tiled_columns), [0, 0, 16, 16, 21, 32, 32, 37, 512]);
    }
}
