//! Kernels for CPUs with AVX2, FMA and F16C.

#![expect(
    clippy::needless_range_loop,
    reason = "The number of a half is the index of registers in several arrays."
)]

pub mod attention;
mod direct;
mod expand;
mod floats;
mod sums;
mod tile;

use std::mem::MaybeUninit;

use crate::activations::{ColumnLayout, quantise};
use crate::floats::FloatFormat;
use crate::format::{FORMATS, Format};
use crate::panel::{BlockParts, ROWS, dequantise_row, pack, unpack_row};
use tile::Column;

/// Number of columns that share an expanded chunk: their outputs and half of their codes fit the caches. The number is 129, so
/// that a batch of 128 columns needs one pass over the weights.
pub const COLUMNS: usize = 43 * TILE;
/// Largest number of columns whose products need no expanded blocks.
const DIRECT: usize = 3;
/// Number of columns of a tile. Their sums, before and after scaling, fill the registers.
const TILE: usize = 3;
/// Number of elements of a row that are expanded at once: 16 KB of codes, half of a first-level cache.
const CHUNK: usize = 1024;
/// Number of elements of a row that are expanded at once to 16-bit codes.
const WIDE_CHUNK: usize = 512;

/// A column of a product.
#[derive(Clone, Copy)]
pub struct Target {
    /// Rounded activations.
    pub column: *const u8,
    /// Output of the panel's first row; the outputs of further rows follow it.
    pub out: *mut f32,
}

/// Multiplies a panel with at most [`COLUMNS`] columns.
pub type Multiply = unsafe fn(panel: *const u8, k: usize, rows: usize, targets: &[Target]);

/// Rounds blocks of a column, see [`crate::activations::quantise`]; float weights need a copy.
pub type Quantise = unsafe fn(x: &[f32], from: usize, to: usize, column: *mut u8);

/// Packs the rows of a panel, see [`crate::panel::pack`].
pub type Pack = unsafe fn(k: usize, rows: &[u8], panel: &mut [u8]);

/// Writes the values of one row of a panel, see [`crate::panel::dequantise_row`].
pub type GetRow = unsafe fn(panel: &[u8], row: usize, out: &mut [f32]);

/// Restores the file's layout of one row of a panel, see [`crate::panel::unpack_row`].
pub type UnpackRow = fn(panel: &[u8], row: usize, out: &mut [u8]);

/// Sizes and functions for one format of weights.
#[derive(Clone, Copy)]
pub struct Kernel {
    /// Number of elements that are packed, and rounded, together.
    pub block_len: usize,
    /// Number of bytes of a block in a GGUF file.
    pub block_bytes: usize,
    /// Number of bytes of a packed block of [`ROWS`] rows.
    pub packed_bytes: usize,
    /// Number of bytes of a column of activations, by its length.
    pub column_bytes: fn(k: usize) -> usize,
    /// Multiplies a panel.
    pub multiply: Multiply,
    /// Rounds activations.
    pub quantise: Quantise,
    /// Packs a panel.
    pub pack: Pack,
    /// Writes the values of a row.
    pub get_row: GetRow,
    /// Restores a row in the file's layout.
    pub unpack_row: UnpackRow,
}

/// Returns the kernel for weights with the number `id` of `enum ggml_type`, or nothing if there is none. The CPU must
/// have AVX2, FMA and F16C.
pub fn kernel(id: u32) -> Option<Kernel> {
    macro_rules! codes {
        ($($at:literal),+) => {
            match Format::of_ggml(id)? as usize {
                $($at => kernel_of_codes::<$at>(),)+
                _ => unreachable!("a format is missing in the table"),
            }
        };
    }
    Some(match id {
        F32 => kernel_of_floats::<F32>(),
        F16 => kernel_of_floats::<F16>(),
        BF16 => kernel_of_floats::<BF16>(),
        _ => codes!(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12),
    })
}

const F32: u32 = FloatFormat::F32.ggml();
const F16: u32 = FloatFormat::F16.ggml();
const BF16: u32 = FloatFormat::Bf16.ggml();

/// Returns the kernel for a format with codes.
fn kernel_of_codes<const F: usize>() -> Kernel {
    let format = const { FORMATS[F] };
    Kernel {
        block_len: format.block_len(),
        block_bytes: format.block_bytes(),
        packed_bytes: BlockParts::of(format).bytes,
        column_bytes: |k| ColumnLayout::of(FORMATS[F], k).bytes,
        multiply: multiply::<F>,
        quantise: quantise_for::<F>,
        pack: pack_for::<F>,
        get_row: get_row_for::<F>,
        unpack_row: |panel, row, out| unpack_row(FORMATS[F], panel, row, out),
    }
}

/// Returns the kernel for float weights.
fn kernel_of_floats<const F: u32>() -> Kernel {
    let format = const { float_format(F) };
    Kernel {
        block_len: FLOAT_BLOCK,
        block_bytes: FLOAT_BLOCK * format.bytes(),
        packed_bytes: FLOAT_BLOCK * ROWS * format.bytes(),
        column_bytes: |k| (4 * k).next_multiple_of(64),
        multiply: floats::multiply::<F>,
        quantise: copy_floats,
        pack: pack_floats::<F>,
        get_row: get_floats::<F>,
        unpack_row: |panel, row, out| float_format(F).unpack_row(panel, row, out),
    }
}

/// Number of elements of float weights that are packed together.
const FLOAT_BLOCK: usize = 8;

/// Returns the float format with the number `id` of `enum ggml_type`.
const fn float_format(id: u32) -> FloatFormat {
    match id {
        F32 => FloatFormat::F32,
        F16 => FloatFormat::F16,
        _ => FloatFormat::Bf16,
    }
}

/// Copies blocks of activations, which float weights need as they are.
///
/// # Safety
/// `column` must be valid for writes of the activations.
unsafe fn copy_floats(x: &[f32], from: usize, to: usize, column: *mut u8) {
    let (from, to) = (FLOAT_BLOCK * from, FLOAT_BLOCK * to);
    // SAFETY: the caller's contract.
    unsafe { std::ptr::copy_nonoverlapping(x[from..to].as_ptr(), column.cast::<f32>().add(from), to - from) };
}

/// # Safety
/// The CPU must have AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn pack_floats<const F: u32>(k: usize, rows: &[u8], panel: &mut [u8]) {
    const { float_format(F) }.pack(k, rows, panel);
}

/// # Safety
/// The CPU must have AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn get_floats<const F: u32>(panel: &[u8], row: usize, out: &mut [f32]) {
    const { float_format(F) }.get_row(panel, row, out);
}

/// # Safety
/// As for [`quantise`]; the CPU must have AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn quantise_for<const F: usize>(x: &[f32], from: usize, to: usize, column: *mut u8) {
    // SAFETY: the caller's contract.
    unsafe { quantise(FORMATS[F], x, from, to, column) };
}

/// # Safety
/// The CPU must have AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn pack_for<const F: usize>(k: usize, rows: &[u8], panel: &mut [u8]) {
    pack(const { FORMATS[F] }, k, rows, panel);
}

/// # Safety
/// The CPU must have AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn get_row_for<const F: usize>(panel: &[u8], row: usize, out: &mut [f32]) {
    dequantise_row(const { FORMATS[F] }, panel, row, out);
}

/// # Safety
/// `panel` must hold rows of `k` elements of the format, and each target's column as many activations. `rows` outputs
/// of each target are written. The CPU must have AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn multiply<const F: usize>(panel: *const u8, k: usize, rows: usize, targets: &[Target]) {
    let format = const { FORMATS[F] };
    let layout = ColumnLayout::of(format, k);
    let len = format.block_len();
    let code_bytes = if layout.wide { 2 } else { 1 };
    // Bytes of sums for each block.
    let sum_bytes = if format.has_super_blocks() { 2 * len / format.sub_len() } else { 4 };
    let mut outputs = [MaybeUninit::<[f32; ROWS]>::uninit(); COLUMNS];
    for out in &mut outputs[..targets.len()] {
        out.write([0.0; ROWS]);
    }
    let outputs = outputs.as_mut_ptr().cast::<f32>();
    // The target's column, from block `first` on.
    let column = |target: &Target, first: usize| {
        let base = target.column;
        // SAFETY: the layout's parts lie within the column; not all formats have totals.
        unsafe {
            Column {
                codes: base.add(code_bytes * len * first),
                sums: base.add(layout.sums + sum_bytes * first),
                d: base.add(layout.d).cast::<f32>().add(first),
                totals: base.wrapping_add(layout.totals).cast::<f32>().wrapping_add(first),
            }
        }
    };

    macro_rules! direct {
        (|$packed:ident, $at:ident, $columns:ident| $($call:tt)+) => {{
            macro_rules! columns {
                ($c:literal) => {{
                    const C: usize = $c;
                    let $columns: &[Column; C] = &std::array::from_fn(|at| column(&targets[at], 0));
                    for $at in 0..k / len {
                        // SAFETY: the panel has all blocks, the columns and outputs belong to it.
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
        unsafe { store(targets, outputs, rows) };
        return;
    }

    // Expands the blocks chunk by chunk, and runs `$call` on each tile of columns.
    macro_rules! chunks {
        ($block:ty, $chunk:expr, $expand:expr, |$blocks:ident, $columns:ident, $out:ident| $($call:tt)+) => {{
            const COUNT: usize = $chunk;
            let mut expanded = [const { MaybeUninit::<$block>::uninit() }; COUNT];
            let blocks = k / len;
            for first in (0..blocks).step_by(COUNT) {
                let count = COUNT.min(blocks - first);
                for (at, block) in expanded[..count].iter_mut().enumerate() {
                    // SAFETY: the panel has all blocks.
                    unsafe { $expand(panel.add((first + at) * BlockParts::of(format).bytes), block.as_mut_ptr()) };
                }
                // SAFETY: the first `count` blocks have been written as far as the tiles read them.
                let $blocks = unsafe { std::slice::from_raw_parts(expanded.as_ptr().cast::<$block>(), count) };
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
            }
        }};
    }
    match format {
        Format::Q4K => {
            chunks!(expand::SuperBlock, CHUNK / 256, expand::super_block::<F>, |blocks, columns, out| {
                tile::super_blocks::<F, C, 8>(blocks, columns, out)
            })
        }
        Format::Q5K | Format::Q2K | Format::Q3K => {
            chunks!(expand::SuperBlock, CHUNK / 256, expand::super_block::<F>, |blocks, columns, out| {
                tile::super_blocks::<F, C, 4>(blocks, columns, out)
            })
        }
        Format::Q6K => {
            chunks!(expand::SuperBlock, CHUNK / 256, expand::super_block::<F>, |blocks, columns, out| {
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
    unsafe { store(targets, outputs, rows) };
}

/// Copies the outputs of each target.
///
/// # Safety
/// There must be [`ROWS`] outputs for each target, and each target must be valid for writes of `rows` floats.
unsafe fn store(targets: &[Target], outputs: *const f32, rows: usize) {
    for (at, target) in targets.iter().enumerate() {
        // SAFETY: the caller's contract.
        unsafe { std::ptr::copy_nonoverlapping(outputs.add(ROWS * at), target.out, rows) };
    }
}
