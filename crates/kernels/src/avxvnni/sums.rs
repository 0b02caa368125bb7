//! The innermost loops, which multiply one register pair of weights with up to three columns and add up the products.
//!
//! They are written in assembly for the same reason as the loops for AVX2, and use all 16 registers.

use std::arch::asm;
use std::arch::x86_64::*;

use crate::avx2::expand::interleaved;
use crate::avx2::sums::Sums;
use crate::format::SUPER;
use crate::panel::ROWS;

/// Number of bits by which the second scale of a pair is shifted ([`scale_pair`]).
pub const SCALE_SHIFT: i32 = 8;

/// Instructions that multiply the groups of the list `$groups`. For each column, `$s` and `$t` are the registers of the
/// sums of both halves of the rows.
macro_rules! products {
    ($groups:literal, $($a:ident, $s:tt, $t:tt);+) => {
        concat!(
            ".irp i, ", $groups, "\n",
            "vmovdqa ymm12, [{w} + 64*\\i]\n",
            "vmovdqa ymm13, [{w} + 64*\\i + 32]\n",
            $(
                "vpbroadcastd ymm14, dword ptr [{", stringify!($a), "} + 4*\\i]\n",
                "{{vex}} vpdpbusd ", $s, ", ymm12, ymm14\n",
                "{{vex}} vpdpbusd ", $t, ", ymm13, ymm14\n",
            )+
            ".endr",
        )
    };
}

/// Defines the loop over the sub-blocks of a super-block. The registers `$u` and `$v` hold the scaled sums.
macro_rules! scaled {
    (($groups:literal, $w:ident, $columns:ident, $scales:ident, $isums:ident),
     $(($at:literal, $a:ident, $sum:ident, $other:ident, $s:tt, $t:tt, $u:tt, $v:tt)),+) => {
        $(let [mut $sum, mut $other] = $isums[$at];)+
        asm!(
            "2:",
            $(concat!("vpxor ", $s, ", ", $s, ", ", $s), concat!("vpxor ", $t, ", ", $t, ", ", $t),)+
            products!($groups, $($a, $s, $t);+),
            "vmovdqa ymm12, [{scales}]",
            "vmovdqa ymm13, [{scales} + 32]",
            $(
                concat!("vpshufb ", $s, ", ", $s, ", ymm15"),
                concat!("{{vex}} vpdpwssd ", $u, ", ", $s, ", ymm12"),
                concat!("vpshufb ", $t, ", ", $t, ", ymm15"),
                concat!("{{vex}} vpdpwssd ", $v, ", ", $t, ", ymm13"),
                concat!("add {", stringify!($a), "}, 4*{G}"),
            )+
            "add {w}, 64*{G}",
            "add {scales}, 64",
            "dec {left}",
            "jnz 2b",
            G = const G,
            w = inout(reg) $w => _,
            scales = inout(reg) $scales => _,
            left = inout(reg) SUPER / 4 / G => _,
            $($a = inout(reg) $columns[$at] => _,)+
            $(out($s) _, out($t) _, inout($u) $sum, inout($v) $other,)+
            out("ymm12") _, out("ymm13") _, out("ymm14") _, in("ymm15") split_order(),
            options(pure, readonly, nostack),
        );
        $($isums[$at] = [$sum, $other];)+
    };
}

/// Defines the products of a block of 32 elements.
macro_rules! plain {
    (($w:ident, $columns:ident, $sums:ident),
     $(($at:literal, $a:ident, $sum:ident, $other:ident, $s:tt, $t:tt, $u:tt, $v:tt)),+) => {
        $(let [mut $sum, mut $other] = $sums[$at];)+
        asm!(
            products!("0, 1, 2, 3, 4, 5, 6, 7", $($a, $s, $t);+),
            w = in(reg) $w,
            $($a = in(reg) $columns[$at], inout($s) $sum, inout($t) $other,)+
            out("ymm12") _, out("ymm13") _, out("ymm14") _,
            options(pure, readonly, nostack, preserves_flags),
        );
        $($sums[$at] = [$sum, $other];)+
    };
}

/// Passes the operands of `$count` columns to `$block`.
macro_rules! columns {
    ($block:ident, $count:ident, $($arguments:tt)*) => {
        columns!(@ $block, $count, ($($arguments)*),
            (0, a0, s0, t0, "ymm0", "ymm1", "ymm6", "ymm7"),
            (1, a1, s1, t1, "ymm2", "ymm3", "ymm8", "ymm9"),
            (2, a2, s2, t2, "ymm4", "ymm5", "ymm10", "ymm11"))
    };
    (@ $block:ident, $count:ident, $arguments:tt, $a:tt, $b:tt, $c:tt) => {
        match $count {
            1 => { $block!($arguments, $a); }
            2 => { $block!($arguments, $a, $b); }
            3 => { $block!($arguments, $a, $b, $c); }
            _ => unreachable!("a tile has one to three columns"),
        }
    };
}

/// Returns the order of bytes, for `vpshufb`, that splits each 32-bit sum for [`scale_pair`]: its lowest 8 bits, and the
/// next 16 bits. No sum of a sub-block has more than 24 bits.
#[target_feature(enable = "avx2")]
#[inline]
pub fn split_order() -> __m256i {
    // Bytes 0, none (index 0x80), 1 and 2 of each sum.
    let [a, b, c, d] = [0, 1, 2, 3].map(|sum| 0x0201_8000 + 0x0404_0004 * sum);
    _mm256_setr_epi32(a, b, c, d, a, b, c, d)
}

/// Returns the factors of both parts of a sum ([`split_order`]) for the rows' scales: the scale, and 256 times the
/// scale. `vpdpwssd` multiplies both parts and adds the products, with one micro-operation; `vpmulld` and an addition
/// need three.
#[target_feature(enable = "avx2")]
#[inline]
pub fn scale_pair(scales: __m256i) -> [__m256i; 2] {
    interleaved(scales, _mm256_slli_epi16::<{ SCALE_SHIFT }>(scales))
}

/// Multiplies a super-block of sub-blocks with `G` groups, and adds the sums, each multiplied by its row's scale.
///
/// # Safety
/// `w` must be aligned to 32 bytes and valid for reads of a super-block's codes, `scales` for its scales in pairs
/// ([`scale_pair`]), and each column for its activations. The CPU must have AVX-VNNI.
#[target_feature(enable = "avx2,avxvnni")]
#[inline]
pub unsafe fn add_scaled<const C: usize, const G: usize>(
    isums: &mut Sums<C>,
    w: *const u8,
    columns: &[*const u8; C],
    scales: *const [[i16; 2]; ROWS],
) {
    // SAFETY: the caller's contract; the assembly reads only the given operands.
    unsafe {
        match G {
            4 => columns!(scaled, C, "0, 1, 2, 3", w, columns, scales, isums),
            8 => columns!(scaled, C, "0, 1, 2, 3, 4, 5, 6, 7", w, columns, scales, isums),
            _ => unreachable!("a sub-block has 4 or 8 groups"),
        }
    }
}

/// Adds the products of a block of 32 elements.
///
/// # Safety
/// `w` must be aligned to 32 bytes and valid for reads of the block's codes, and each column for its activations. The
/// CPU must have AVX-VNNI.
#[target_feature(enable = "avx2,avxvnni")]
#[inline]
pub unsafe fn add<const C: usize>(sums: &mut Sums<C>, w: *const u8, columns: &[*const u8; C]) {
    // SAFETY: the caller's contract; the assembly reads only the given operands.
    unsafe { columns!(plain, C, w, columns, sums) }
}
