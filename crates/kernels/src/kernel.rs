//! Kernels: sizes and functions for one format of weights and one instruction set.

use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr::copy_nonoverlapping;

use crate::activations::ColumnLayout;
use crate::floats::FloatFormat;
use crate::format::{FORMATS, Format};
use crate::instruction_set::InstructionSet;
use crate::panel::{BlockParts, ROWS, dequantise_row, pack, unpack_row};

/// Input and output of one column of a product.
#[derive(Clone, Copy)]
pub struct Target {
    /// Rounded activations.
    pub column: *const u8,
    /// Output of the panel's first row; the outputs of further rows follow it.
    pub out: *mut f32,
}

/// Multiplies panels, see [`Functions::multiply`].
pub type Multiply = unsafe fn(panels: *const u8, k: usize, rows: usize, targets: &[Target]);

/// Rounds blocks of a column (see [`crate::activations::quantise`]), or copies them for float weights.
pub type Quantise = unsafe fn(x: &[f32], from: usize, to: usize, column: *mut u8);

/// Packs the rows of a panel, see [`crate::panel::pack`].
pub type Pack = unsafe fn(k: usize, rows: &[u8], panel: &mut [u8]);

/// Writes the values of one row of a panel, see [`crate::panel::dequantise_row`].
pub type GetRow = unsafe fn(panel: &[u8], row: usize, out: &mut [f32]);

/// Restores one row of a panel to the file's layout; see [`crate::panel::unpack_row`].
pub type UnpackRow = fn(panel: &[u8], row: usize, out: &mut [u8]);

/// Sizes and functions for one format of weights.
#[derive(Clone, Copy)]
pub struct Kernel {
    /// Maximum number of columns in a product.
    pub columns: usize,
    /// Maximum number of panels in a product.
    pub panels: usize,
    /// Number of elements that are packed, and rounded, together.
    pub block_len: usize,
    /// Size of a block in a GGUF file, in bytes.
    pub block_bytes: usize,
    /// Size of a packed block of [`ROWS`] rows, in bytes.
    pub packed_bytes: usize,
    /// Returns the size in bytes of an activation column of the given length.
    pub column_bytes: fn(k: usize) -> usize,
    /// Multiplies panels.
    pub multiply: Multiply,
    /// Rounds activations.
    pub quantise: Quantise,
    /// Packs a panel.
    pub pack: Pack,
    /// Writes the values of a row.
    pub get_row: GetRow,
    /// Restores a row to the file's layout.
    pub unpack_row: UnpackRow,
}

/// Functions that differ between instruction sets.
pub trait Functions {
    /// Instruction set that the CPU must have.
    const SET: InstructionSet;
    /// Maximum number of columns in a product.
    const COLUMNS: usize;
    /// Maximum number of panels in a product of codes. A product of floats has one panel.
    const PANELS: usize = 1;

    /// Multiplies at most [`Functions::PANELS`] consecutive panels of the format `FORMATS[F]` with at most
    /// [`Functions::COLUMNS`] columns.
    ///
    /// # Safety
    /// `panels` must contain `rows` rows of `k` elements of the format, and each target's column as many activations.
    /// `rows` outputs of each target are written.
    unsafe fn multiply<const F: usize>(panels: *const u8, k: usize, rows: usize, targets: &[Target]);

    /// Multiplies a panel in the float format whose number in `enum ggml_type` is `F`.
    ///
    /// # Safety
    /// Same as for [`Functions::multiply`]; a column is `k` floats.
    unsafe fn multiply_floats<const F: u32>(panel: *const u8, k: usize, rows: usize, targets: &[Target]);

    /// Rounds blocks of a column for the format `FORMATS[F]`.
    ///
    /// # Safety
    /// Same as for [`crate::activations::quantise`].
    unsafe fn quantise<const F: usize>(x: &[f32], from: usize, to: usize, column: *mut u8);
}

/// Returns the kernel of an instruction set, see [`crate::select::kernel`].
pub fn kernel_of<I: Functions>(id: u32) -> Option<Kernel> {
    macro_rules! codes {
        ($($at:literal),+) => {
            match Format::of_ggml(id)? as usize {
                $($at => kernel_of_codes::<I, $at>(),)+
                _ => unreachable!("a format is missing from the table"),
            }
        };
    }
    Some(match id {
        F32 => kernel_of_floats::<I, F32>(),
        F16 => kernel_of_floats::<I, F16>(),
        BF16 => kernel_of_floats::<I, BF16>(),
        _ => codes!(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12),
    })
}

const F32: u32 = FloatFormat::F32.ggml();
const F16: u32 = FloatFormat::F16.ggml();
const BF16: u32 = FloatFormat::Bf16.ggml();

/// Returns the kernel for a format with codes.
fn kernel_of_codes<I: Functions, const F: usize>() -> Kernel {
    let format = const { FORMATS[F] };
    Kernel {
        columns: I::COLUMNS,
        panels: I::PANELS,
        block_len: format.block_len(),
        block_bytes: format.block_bytes(),
        packed_bytes: BlockParts::of(format).bytes,
        column_bytes: |k| ColumnLayout::of(I::SET, FORMATS[F], k).bytes,
        multiply: I::multiply::<F>,
        quantise: I::quantise::<F>,
        pack: pack_for::<F>,
        get_row: get_row_for::<F>,
        unpack_row: |panel, row, out| unpack_row(FORMATS[F], panel, row, out),
    }
}

/// Returns the kernel for float weights.
fn kernel_of_floats<I: Functions, const F: u32>() -> Kernel {
    let format = const { float_format(F) };
    Kernel {
        columns: I::COLUMNS,
        panels: 1,
        block_len: FLOAT_BLOCK,
        block_bytes: FLOAT_BLOCK * format.bytes(),
        packed_bytes: FLOAT_BLOCK * ROWS * format.bytes(),
        column_bytes: |k| (4 * k).next_multiple_of(64),
        multiply: I::multiply_floats::<F>,
        quantise: copy_floats,
        pack: pack_floats::<F>,
        get_row: get_floats::<F>,
        unpack_row: |panel, row, out| float_format(F).unpack_row(panel, row, out),
    }
}

/// Number of elements of float weights that are packed together.
const FLOAT_BLOCK: usize = 8;

/// Returns the float format with the number `id` of `enum ggml_type`.
pub const fn float_format(id: u32) -> FloatFormat {
    match id {
        F32 => FloatFormat::F32,
        F16 => FloatFormat::F16,
        _ => FloatFormat::Bf16,
    }
}

/// Copies blocks of activations, because float weights need unrounded activations.
///
/// # Safety
/// `column` must be valid for writes of the activations.
unsafe fn copy_floats(x: &[f32], from: usize, to: usize, column: *mut u8) {
    let (from, to) = (FLOAT_BLOCK * from, FLOAT_BLOCK * to);
    // SAFETY: the caller's contract.
    unsafe { copy_nonoverlapping(x[from..to].as_ptr(), column.cast::<f32>().add(from), to - from) };
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

/// A column of activations, starting at some block.
#[derive(Clone, Copy)]
pub struct Column {
    /// Codes.
    pub codes: *const u8,
    /// Sums of codes.
    pub sums: *const u8,
    /// Scales.
    pub d: *const f32,
    /// Scales times sums of codes, if the format has them.
    pub totals: *const f32,
}

impl Column {
    /// Returns the column of `target`, starting at block `first`.
    ///
    /// # Safety
    /// The target's column must have `layout` and a block `first`.
    #[inline(always)]
    pub unsafe fn of(layout: &ColumnLayout, format: Format, target: &Target, first: usize) -> Self {
        let len = format.block_len();
        let code_bytes = if layout.wide { 2 } else { 1 };
        let sum_bytes = if format.has_super_blocks() { 2 * len / format.sub_len() } else { 4 };
        let base = target.column;
        // SAFETY: the layout's parts lie within the column; not all formats have totals.
        unsafe {
            Self {
                codes: base.add(code_bytes * len * first),
                sums: base.add(layout.sums + sum_bytes * first),
                d: base.add(layout.d).cast::<f32>().add(first),
                totals: base.wrapping_add(layout.totals).cast::<f32>().wrapping_add(first),
            }
        }
    }
}

/// Sets the outputs of the first `count` columns to zero, and returns the first of them. The memory is filled in place,
/// because a copy would cost as much as some products.
pub fn zeros(outputs: &mut [MaybeUninit<[f32; ROWS]>], count: usize) -> *mut f32 {
    for out in &mut outputs[..count] {
        out.write([0.0; ROWS]);
    }
    outputs.as_mut_ptr().cast()
}

/// Copies the outputs of the rows `rows`, at most a panel, to each target.
///
/// # Safety
/// There must be [`ROWS`] outputs for each target, and each target must be valid for writes of `rows.end` floats.
pub unsafe fn store(targets: &[Target], outputs: *const f32, rows: Range<usize>) {
    for (at, target) in targets.iter().enumerate() {
        // SAFETY: the caller's contract.
        unsafe { copy_nonoverlapping(outputs.add(ROWS * at), target.out.add(rows.start), rows.len()) };
    }
}

/// Splits `$count` rows or columns into nearly equal parts, because a small part takes nearly as long as a large one.
/// The last `$size` is the maximum length of a part. Runs `$call` for each part, with its first number and with its
/// length as the constant `$n`.
macro_rules! parts {
    ($count:expr, [$($size:literal),+], |$first:ident, $n:ident| $call:expr) => {
        let most = [$($size),+].len();
        let parts = $count.div_ceil(most);
        for part in 0..parts {
            let $first = $count * part / parts;
            match $count * (part + 1) / parts - $first {
                $($size => {
                    const $n: usize = $size;
                    $call
                })+
                _ => unreachable!("a part has at most the largest size"),
            }
        }
    };
}

pub(crate) use parts;
