//! The innermost loops, which multiply one register pair of weights with some columns and add up the products.
//!
//! They are written in assembly, because a compiler loads operands far ahead and then has to keep sums in memory.
//! Each loop uses at most 10 of the 16 registers, which leaves six for scaled sums.

use std::arch::asm;
use std::arch::x86_64::*;

/// Returns `count`, which the compiler then does not know. Otherwise, it copies the loops of this module as often as
/// the loop around them runs, because it takes each of them for a single instruction. Eight copies have 13 KiB of code,
/// which a Zen 3 decodes more slowly than it multiplies. The loop must not check bounds, because the length of an array
/// tells the compiler the largest count.
#[inline]
pub fn rolled(count: usize) -> usize {
    std::hint::black_box(count)
}

/// 16-bit or 32-bit sums of the two halves of the rows, for each column.
pub type Sums<const C: usize> = [[__m256i; 2]; C];

/// First step of a column: products without a sum.
macro_rules! first {
    ($multiply:literal, $a:literal, $s:literal, $t:literal) => {
        concat!(
            "vpbroadcastd {b}, dword ptr [{",
            $a,
            "}]\n",
            $multiply,
            " {",
            $s,
            "}, {w0}, {b}\n",
            $multiply,
            " {",
            $t,
            "}, {w1}, {b}\n",
        )
    };
}

/// A later step of a column, inside `.irp i`.
macro_rules! next {
    ($multiply:literal, $add:literal, $a:literal, $s:literal, $t:literal) => {
        concat!(
            "vpbroadcastd {b}, dword ptr [{",
            $a,
            "} + 4*\\i]\n",
            $multiply,
            " {p}, {w0}, {b}\n",
            $multiply,
            " {b}, {w1}, {b}\n",
            $add,
            " {",
            $s,
            "}, {",
            $s,
            "}, {p}\n",
            $add,
            " {",
            $t,
            "}, {",
            $t,
            "}, {b}\n",
        )
    };
}

/// Defines the loop for a number of columns and steps.
macro_rules! block {
    ($multiply:literal, $add:literal, $steps:literal, $w:ident, $columns:ident, $sums:ident,
     $(($at:literal, $a:literal, $s:literal, $t:literal, $an:ident, $sn:ident, $tn:ident)),+) => {
        // SAFETY: the caller's contract; the assembly reads only the given operands.
        unsafe {
            $(let ($sn, $tn): (__m256i, __m256i);)+
            asm!(
                "vmovdqa {w0}, [{w}]",
                "vmovdqa {w1}, [{w} + 32]",
                $(first!($multiply, $a, $s, $t),)+
                concat!(".irp i, ", $steps),
                "vmovdqa {w0}, [{w} + 64*\\i]",
                "vmovdqa {w1}, [{w} + 64*\\i + 32]",
                $(next!($multiply, $add, $a, $s, $t),)+
                ".endr",
                w = in(reg) $w,
                $($an = in(reg) $columns[$at], $sn = out(ymm_reg) $sn, $tn = out(ymm_reg) $tn,)+
                w0 = out(ymm_reg) _, w1 = out(ymm_reg) _, b = out(ymm_reg) _, p = out(ymm_reg) _,
                options(pure, readonly, nostack, preserves_flags),
            );
            $($sums[$at] = [$sn, $tn];)+
        }
    };
}

/// Chooses the block for the number of columns.
macro_rules! blocks {
    ($multiply:literal, $add:literal, $steps:literal, $count:ident, $w:ident, $columns:ident, $sums:ident) => {
        match $count {
            1 => block!($multiply, $add, $steps, $w, $columns, $sums, (0, "a0", "s0", "t0", a0, s0, t0)),
            2 => block!(
                $multiply,
                $add,
                $steps,
                $w,
                $columns,
                $sums,
                (0, "a0", "s0", "t0", a0, s0, t0),
                (1, "a1", "s1", "t1", a1, s1, t1)
            ),
            3 => block!(
                $multiply,
                $add,
                $steps,
                $w,
                $columns,
                $sums,
                (0, "a0", "s0", "t0", a0, s0, t0),
                (1, "a1", "s1", "t1", a1, s1, t1),
                (2, "a2", "s2", "t2", a2, s2, t2)
            ),
            _ => unreachable!("a tile has one to three columns"),
        }
    };
}

/// Returns the sums over `G` groups of four elements, in 16-bit lanes. For each row, one lane is the sum over
/// elements 0 and 1 of the groups, and the next lane is the sum over elements 2 and 3. `G` is 2, 4 or 8, which is
/// small enough that no sum overflows its lane.
///
/// # Safety
/// `w` must be aligned to 32 bytes and valid for reads of `64 * G` bytes, each column for reads of `4 * G` bytes.
#[target_feature(enable = "avx2")]
#[inline]
pub unsafe fn narrow<const C: usize, const G: usize>(w: *const u8, columns: &[*const u8; C]) -> Sums<C> {
    let mut sums = [[_mm256_setzero_si256(); 2]; C];
    match G {
        2 => blocks!("vpmaddubsw", "vpaddw", "1", C, w, columns, sums),
        4 => blocks!("vpmaddubsw", "vpaddw", "1, 2, 3", C, w, columns, sums),
        8 => blocks!("vpmaddubsw", "vpaddw", "1, 2, 3, 4, 5, 6, 7", C, w, columns, sums),
        _ => unreachable!("a sum has 2, 4 or 8 groups"),
    }
    sums
}

/// Returns the sums over 32 elements of 16-bit codes, in 32-bit lanes: one for each row.
///
/// # Safety
/// `w` must be aligned to 32 bytes and valid for reads of 1024 bytes, each column for reads of 64 bytes.
#[target_feature(enable = "avx2")]
#[inline]
pub unsafe fn wide<const C: usize>(w: *const i16, columns: &[*const u8; C]) -> Sums<C> {
    let mut sums = [[_mm256_setzero_si256(); 2]; C];
    blocks!("vpmaddwd", "vpaddd", "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15", C, w, columns, sums);
    sums
}
