//! Adds the products of blocks to the outputs of columns.
//!
//! While tile instructions multiply a batch of columns, vector instructions multiply the sums of the previous batch by
//! its scales and add them to the outputs. The two kinds of work alternate in short steps, because a CPU does not look
//! far enough ahead to overlap whole batches by itself.

use std::arch::x86_64::*;
use std::mem::MaybeUninit;
use std::ops::Range;

use crate::activations::{ColumnLayout, has_totals};
use crate::avx512vnni::weights::{broadcast, factors, float_scales};
use crate::format::{FORMATS, SMALL, SUPER};
use crate::instruction_set::InstructionSet;
use crate::kernel::Target;
use crate::panel::{BlockParts, GROUP, ROWS, panel_len};

use super::PANELS;
use super::expand::{self, Expanded, SMALL_PLANE, planes};
use super::tiles::{
    Activations, Copied, LOW_AND_HIGH, SIGNED, Sums, TILE_COLUMNS, TileSums, Tiles, UNSIGNED, stride,
};

/// Number of small blocks that are multiplied together: one for each tile of sums.
const TOGETHER: usize = 4;

/// Blocks of a panel whose sums are in tiles at the same time.
trait Blocks {
    /// Number of elements.
    const LEN: usize;
    /// Number of columns that are multiplied together.
    const BATCH: usize;
    /// Number of steps in which a batch is multiplied.
    const STEPS: usize;

    /// Expands the packed blocks at `packed`.
    ///
    /// # Safety
    /// See [`expand::super_block`].
    unsafe fn expand(packed: *const u8, out: *mut u8);

    /// Reads the scales of the packed blocks at `packed`, the first of which is block `at` of the columns.
    ///
    /// # Safety
    /// `packed` must be valid for reads of the blocks.
    unsafe fn of(packed: *const u8, layout: &ColumnLayout, at: usize) -> Self;

    /// Adds the products of step `step` to the tiles, for one or two tiles of columns.
    ///
    /// # Safety
    /// The activations and the expanded blocks must be valid for reads.
    unsafe fn step(
        tiles: &Tiles,
        step: usize,
        column_tiles: usize,
        activations: Activations,
        weights: *const u8,
    );

    /// Multiplies the sums of the targets in `share` by their scales, and adds them to the outputs.
    ///
    /// # Safety
    /// `sums` must contain the sums of `targets`, and `out` must be valid for 16 floats per target.
    unsafe fn add(&self, sums: *const Sums, targets: &[Target], share: Range<usize>, out: *mut f32);
}

/// Memory of a product.
struct Memory {
    /// Expanded blocks of each panel.
    expanded: [MaybeUninit<Expanded>; PANELS],
    copied: MaybeUninit<Copied>,
    /// Sums of the current batch and of the previous batch.
    sums: [MaybeUninit<Sums>; 2],
}

/// Panels and columns of a product.
struct Product<'a> {
    format: crate::format::Format,
    panels: *const u8,
    k: usize,
    /// Number of panels.
    count: usize,
    targets: &'a [Target],
    /// Distance between the columns in bytes, if all distances are equal.
    stride: Option<usize>,
    /// Outputs, panel after panel and column after column.
    out: *mut f32,
}

/// Adds the products of panels with `rows` rows to `out`.
///
/// # Safety
/// Same as for [`crate::kernel::Functions::multiply`]; `out` must be valid for 16 floats per panel and target. The CPU
/// must have the instruction set.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
pub unsafe fn multiply<const F: usize>(
    panels: *const u8,
    k: usize,
    rows: usize,
    targets: &[Target],
    out: *mut f32,
) {
    let format = const { FORMATS[F] };
    let layout = ColumnLayout::of(InstructionSet::Amx, format, k);
    let product =
        Product { format, panels, k, count: rows.div_ceil(ROWS), targets, stride: stride(targets), out };
    let mut memory = Memory {
        expanded: [const { MaybeUninit::uninit() }; PANELS],
        copied: MaybeUninit::uninit(),
        sums: [const { MaybeUninit::uninit() }; 2],
    };
    // SAFETY: the caller's contract.
    unsafe {
        let tiles = Tiles::configure(format);
        if format.has_super_blocks() {
            for at in 0..k / SUPER {
                multiply_blocks::<SuperBlock<F>>(&tiles, &product, &layout, at, &mut memory);
            }
        } else {
            let whole = k / SMALL / TOGETHER * TOGETHER;
            for at in (0..whole).step_by(TOGETHER) {
                multiply_blocks::<SmallBlocks<F, TOGETHER>>(&tiles, &product, &layout, at, &mut memory);
            }
            for at in whole..k / SMALL {
                multiply_blocks::<SmallBlocks<F, 1>>(&tiles, &product, &layout, at, &mut memory);
            }
        }
    }
}

/// Adds the products of the blocks that start at block `at`.
///
/// # Safety
/// Same as for [`multiply`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
unsafe fn multiply_blocks<B: Blocks>(
    tiles: &Tiles,
    product: &Product,
    layout: &ColumnLayout,
    at: usize,
    memory: &mut Memory,
) {
    let Product { format, panels, k, count, targets, stride, out } = *product;
    let first = format.block_len() * at;
    let batch = |number: usize| {
        let from = (B::BATCH * number).min(targets.len());
        &targets[from..targets.len().min(from + B::BATCH)]
    };
    // SAFETY: the caller's contract.
    unsafe {
        let mut blocks = [const { MaybeUninit::uninit() }; PANELS];
        for (panel, block) in blocks[..count].iter_mut().enumerate() {
            let packed = panels.add(panel_len(format, k) * panel + BlockParts::of(format).bytes * at);
            B::expand(packed, memory.expanded[panel].as_mut_ptr().cast());
            block.write(B::of(packed, layout, at));
        }
        // All panels multiply a batch while its activations are in the first-level cache. The last round only adds the
        // sums of the previous round.
        let rounds = targets.len().div_ceil(B::BATCH) * count;
        let mut before: (&[Target], usize, *mut f32) = (&[], 0, out);
        for round in 0..=rounds {
            let (batch, panel) = (batch(round / count), round % count);
            let mut activations = None;
            if round < rounds {
                if let Some(share) = batch.chunks(batch.len().div_ceil(count)).nth(panel) {
                    prefetch(share, first + B::LEN, B::LEN);
                }
                tiles.zero();
                activations = Some(Activations::of(batch, stride, first, B::LEN, &mut memory.copied));
            }
            let weights = memory.expanded[panel].as_ptr().cast();
            let sums = memory.sums[(round + 1) % 2].as_ptr();
            let (finished, finished_panel, finished_out) = before;
            for step in 0..B::STEPS {
                if let Some(activations) = activations {
                    B::step(tiles, step, batch.len().div_ceil(TILE_COLUMNS), activations, weights);
                }
                let share = finished.len() * step / B::STEPS..finished.len() * (step + 1) / B::STEPS;
                blocks[finished_panel].assume_init_ref().add(sums, finished, share, finished_out);
            }
            if round < rounds {
                tiles.store(memory.sums[round % 2].as_mut_ptr());
                before = (batch, panel, out.add(ROWS * (targets.len() * panel + B::BATCH * (round / count))));
            }
        }
    }
}

/// Prefetches `count` activations of each target, starting at activation `first`. Each panel prefetches its share of a
/// batch's activations in the next blocks.
#[target_feature(enable = "avx512f")]
#[inline]
fn prefetch(targets: &[Target], first: usize, count: usize) {
    for target in targets {
        for line in (0..count).step_by(64) {
            _mm_prefetch::<_MM_HINT_T1>(target.column.wrapping_add(first + line).cast());
        }
    }
}

/// Scales and minima of a packed super-block, and the positions of its parts in a column.
struct SuperBlock<const F: usize> {
    /// Float scales.
    d_w: __m512,
    /// Float scales of the minima, if the format has minima.
    m_w: __m512,
    /// Minima of two sub-blocks each, see [`factors`].
    minima: [__m512i; 8],
    /// Position of the scale of the activations.
    d: usize,
    /// Position of the sums of the activations.
    sums: usize,
}

impl<const F: usize> Blocks for SuperBlock<F> {
    const LEN: usize = SUPER;
    const BATCH: usize = 2 * TILE_COLUMNS;
    const STEPS: usize = SUPER / GROUP;

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    #[inline]
    unsafe fn expand(packed: *const u8, out: *mut u8) {
        // SAFETY: the caller's contract.
        unsafe { expand::super_block::<F>(packed, out) };
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    #[inline]
    unsafe fn of(packed: *const u8, layout: &ColumnLayout, at: usize) -> Self {
        let format = const { FORMATS[F] };
        let parts = BlockParts::of(format);
        let mut minima = [_mm512_setzero_si512(); 8];
        let mut m_w = _mm512_setzero_ps();
        // SAFETY: the caller's contract.
        unsafe {
            if format.has_mins() {
                for (pair, minima) in minima[..SUPER / format.sub_len() / 2].iter_mut().enumerate() {
                    *minima = factors::<F>(packed, pair);
                }
                m_w = float_scales::<F>(packed.add(parts.m));
            }
            Self {
                d_w: float_scales::<F>(packed.add(parts.d)),
                m_w,
                minima,
                d: layout.d + 4 * at,
                sums: layout.sums + 2 * SUPER / format.sub_len() * at,
            }
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    #[inline]
    unsafe fn step(
        tiles: &Tiles,
        step: usize,
        column_tiles: usize,
        activations: Activations,
        weights: *const u8,
    ) {
        let activations = activations.from(GROUP * step);
        // SAFETY: the caller's contract.
        unsafe {
            let low = weights.add(ROWS * GROUP * step);
            match (const { planes(FORMATS[F]) }, column_tiles) {
                (UNSIGNED, 1) => tiles.multiply::<1, UNSIGNED>(activations, low),
                (UNSIGNED, _) => tiles.multiply::<2, UNSIGNED>(activations, low),
                (SIGNED, 1) => tiles.multiply::<1, SIGNED>(activations, low),
                (SIGNED, _) => tiles.multiply::<2, SIGNED>(activations, low),
                (_, 1) => tiles.multiply::<1, LOW_AND_HIGH>(activations, low),
                _ => tiles.multiply::<2, LOW_AND_HIGH>(activations, low),
            }
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    #[inline]
    unsafe fn add(&self, sums: *const Sums, targets: &[Target], share: Range<usize>, out: *mut f32) {
        let format = const { FORMATS[F] };
        for c in share {
            // SAFETY: the caller's contract.
            unsafe {
                let column = targets.get_unchecked(c).column;
                let sum = |tile: usize| load(&raw const (*sums).0[tile + c / TILE_COLUMNS], c % TILE_COLUMNS);
                let isum = match planes(format) {
                    LOW_AND_HIGH => _mm512_add_epi32(sum(0), _mm512_slli_epi32::<8>(sum(2))),
                    // The products of codes and scales are negated.
                    SIGNED => _mm512_sub_epi32(_mm512_setzero_si512(), sum(0)),
                    _ => sum(0),
                };
                let d_a = _mm512_set1_ps(*column.add(self.d).cast());
                let out = out.add(ROWS * c);
                let product = _mm512_cvtepi32_ps(isum);
                let mut total = _mm512_fmadd_ps(_mm512_mul_ps(self.d_w, d_a), product, _mm512_loadu_ps(out));
                if format.has_mins() {
                    let mut minimum = _mm512_setzero_si512();
                    for pair in 0..SUPER / format.sub_len() / 2 {
                        let sums = broadcast(column.add(self.sums + 4 * pair));
                        minimum = _mm512_dpwssd_epi32(minimum, self.minima[pair], sums);
                    }
                    let minimum = _mm512_cvtepi32_ps(minimum);
                    total = _mm512_fnmadd_ps(_mm512_mul_ps(self.m_w, d_a), minimum, total);
                }
                _mm512_storeu_ps(out, total);
            }
        }
    }
}

/// Scales of `N` packed small blocks, and the positions of their parts in a column.
struct SmallBlocks<const F: usize, const N: usize> {
    /// Float scales.
    d_w: [__m512; N],
    /// Float minima, if the format has minima.
    m_w: [__m512; N],
    /// Position of the scale of the activations.
    d: usize,
    /// Position of the total of the activations.
    totals: usize,
}

impl<const F: usize, const N: usize> Blocks for SmallBlocks<F, N> {
    const LEN: usize = N * SMALL;
    const BATCH: usize = TILE_COLUMNS;
    const STEPS: usize = N;

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    #[inline]
    unsafe fn expand(packed: *const u8, out: *mut u8) {
        // SAFETY: the caller's contract.
        unsafe { expand::small_blocks::<F>(packed, N, out) };
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    #[inline]
    unsafe fn of(packed: *const u8, layout: &ColumnLayout, at: usize) -> Self {
        let format = const { FORMATS[F] };
        let parts = BlockParts::of(format);
        // SAFETY: the caller's contract.
        let scales = |n: usize, part: usize| unsafe { float_scales::<F>(packed.add(parts.bytes * n + part)) };
        Self {
            d_w: std::array::from_fn(|n| scales(n, parts.d)),
            m_w: std::array::from_fn(|n| {
                if has_totals(format) { scales(n, parts.m) } else { _mm512_setzero_ps() }
            }),
            d: layout.d + 4 * at,
            totals: layout.totals + 4 * at,
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    #[inline]
    unsafe fn step(tiles: &Tiles, step: usize, _: usize, activations: Activations, weights: *const u8) {
        let activations = activations.from(SMALL * step);
        // SAFETY: the caller's contract.
        unsafe {
            let weights = weights.add(SMALL_PLANE * step);
            match step {
                0 => tiles.multiply_small::<0>(activations, weights),
                1 => tiles.multiply_small::<1>(activations, weights),
                2 => tiles.multiply_small::<2>(activations, weights),
                _ => tiles.multiply_small::<3>(activations, weights),
            }
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    #[inline]
    unsafe fn add(&self, sums: *const Sums, targets: &[Target], share: Range<usize>, out: *mut f32) {
        for c in share {
            // SAFETY: the caller's contract.
            unsafe {
                let column = targets.get_unchecked(c).column;
                let number = |at: usize| _mm512_set1_ps(*column.add(at).cast());
                let out = out.add(ROWS * c);
                let mut total = _mm512_loadu_ps(out);
                for n in 0..N {
                    let product = _mm512_cvtepi32_ps(load(&raw const (*sums).0[n], c));
                    total =
                        _mm512_fmadd_ps(_mm512_mul_ps(self.d_w[n], number(self.d + 4 * n)), product, total);
                    if has_totals(const { FORMATS[F] }) {
                        total = _mm512_fmadd_ps(self.m_w[n], number(self.totals + 4 * n), total);
                    }
                }
                _mm512_storeu_ps(out, total);
            }
        }
    }
}

/// Returns the sums of column `at`.
///
/// # Safety
/// The column's sums must be initialised.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn load(sums: *const TileSums, at: usize) -> __m512i {
    // SAFETY: a column's sums fill a register.
    unsafe { _mm512_load_si512((&raw const (*sums)[at]).cast()) }
}
