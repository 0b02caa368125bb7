//! Expands packed codes into the operands of tile instructions.
//!
//! The operand contains groups in ascending order: for four elements, one byte of each element in sixteen rows. For
//! super-blocks, the byte belongs to the product of the code's value and its sub-block's scale. This product has at
//! most 14 bits with its sign, so it fills two planes: one with the low bytes, which are unsigned, and one with the
//! high bytes, which are signed. Sums then satisfy `sum = low + 256 * high`, exactly. The products of `Q2_K` and `Q3_K`
//! fit into one byte: those of `Q2_K` are at most 45, and the negated products of `Q3_K` lie between -128 and 124. For
//! small blocks, the byte is the code's value with its sign.

use std::arch::x86_64::*;

use crate::avx512vnni::weights::{codes, scales};
use crate::format::{FORMATS, Format, SMALL, SUPER};
use crate::instruction_set::InstructionSet;
use crate::panel::{BlockParts, GROUP, Planes, ROWS};

use super::tiles::{LOW_AND_HIGH, SIGNED, UNSIGNED};

/// Memory for the expanded codes of a super-block, or of some small blocks.
#[repr(C, align(64))]
pub struct Expanded([u8; 2 * PLANE]);

/// Size of one expanded plane of a super-block, in bytes.
pub const PLANE: usize = ROWS * SUPER;
/// Size of an expanded small block, in bytes.
pub const SMALL_PLANE: usize = ROWS * SMALL;

/// Returns the planes of a format with super-blocks.
pub const fn planes(format: Format) -> u8 {
    match format {
        Format::Q2K => UNSIGNED,
        Format::Q3K => SIGNED,
        _ => LOW_AND_HIGH,
    }
}

/// Expands `count` packed small blocks, starting at `packed`.
///
/// # Safety
/// `packed` must be valid for `count` packed blocks; `out` must be valid for writes of their planes and aligned to 64
/// bytes. The CPU must have the instruction set.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
pub unsafe fn small_blocks<const F: usize>(packed: *const u8, count: usize, out: *mut u8) {
    let bytes = BlockParts::of(const { FORMATS[F] }).bytes;
    for at in 0..count {
        // SAFETY: the caller's contract.
        unsafe { unit::<F, 0, 8>(packed.add(bytes * at), out.add(SMALL_PLANE * at), _mm512_setzero_si512()) };
    }
}

/// Expands the packed super-block at `packed`. The high plane, if the format has one, is [`PLANE`] bytes after `out`.
///
/// # Safety
/// Same as for [`small_blocks`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
pub unsafe fn super_block<const F: usize>(packed: *const u8, out: *mut u8) {
    let format = const { FORMATS[F] };
    let unit_bytes = Planes::of(format).unit_bytes();
    for number in 0..SUPER / SMALL {
        // SAFETY: the block has all units and scales.
        unsafe {
            let from = packed.add(unit_bytes * number);
            let out = out.add(ROWS * SMALL * number);
            // A scale is repeated in both halves of a row's lane.
            let scale = |sub: usize| {
                let scales = scales::<F>(packed, sub);
                _mm512_mask_blend_epi16(0xaaaa_aaaa, scales, _mm512_slli_epi32::<16>(scales))
            };
            if format.sub_len() == SMALL {
                unit::<F, 0, 8>(from, out, scale(number));
            } else {
                unit::<F, 0, 4>(from, out, scale(2 * number));
                unit::<F, 4, 8>(from, out, scale(2 * number + 1));
            }
        }
    }
}

/// Expands the groups `FROM..TO` of the unit at `from`, whose groups belong at `out`.
///
/// # Safety
/// `from` must be valid for reads of a unit, and `out` for writes of its groups.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
unsafe fn unit<const F: usize, const FROM: usize, const TO: usize>(
    from: *const u8,
    out: *mut u8,
    scale: __m512i,
) {
    macro_rules! groups {
        ($($group:literal)+) => {
            $(if FROM <= $group && $group < TO {
                // SAFETY: the caller's contract.
                unsafe { group::<F>(codes::<F, $group>(from), out.add(GROUP * $group), scale) };
            })+
        };
    }
    groups!(0 1 2 3 4 5 6 7);
}

/// Writes a group, given its unsigned codes.
///
/// # Safety
/// `out` must be valid for writes of the group in each plane, and aligned to 64 bytes.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
unsafe fn group<const F: usize>(codes: __m512i, out: *mut u8, scale: __m512i) {
    let format = const { FORMATS[F] };
    let offset = InstructionSet::Amx.offset(format);
    // SAFETY: the caller's contract.
    let write = |plane: usize, bytes: __m512i| unsafe { _mm512_store_si512(out.add(plane).cast(), bytes) };
    if !format.has_super_blocks() {
        write(0, _mm512_sub_epi8(codes, _mm512_set1_epi8(offset as i8)));
        return;
    }
    if matches!(format, Format::Q2K) {
        // A product is at most 45, so the product of the lower byte carries nothing into the upper byte.
        write(0, _mm512_mullo_epi16(codes, scale));
        return;
    }
    let low_bytes = _mm512_set1_epi16(0xff);
    let product = |codes| {
        if offset == 0 {
            _mm512_mullo_epi16(codes, scale)
        } else {
            _mm512_mullo_epi16(_mm512_sub_epi16(codes, _mm512_set1_epi16(offset as i16)), scale)
        }
    };
    let even = product(_mm512_and_si512(codes, low_bytes));
    let odd = product(_mm512_srli_epi16::<8>(codes));
    if matches!(format, Format::Q3K) {
        let (even, odd) =
            (_mm512_sub_epi16(_mm512_setzero_si512(), even), _mm512_sub_epi16(_mm512_setzero_si512(), odd));
        write(0, _mm512_mask_blend_epi8(ODD_BYTES, even, _mm512_slli_epi16::<8>(odd)));
        return;
    }
    write(0, _mm512_mask_blend_epi8(ODD_BYTES, even, _mm512_slli_epi16::<8>(odd)));
    write(PLANE, _mm512_mask_blend_epi8(ODD_BYTES, _mm512_srli_epi16::<8>(even), odd));
}

/// The odd bytes of a register.
const ODD_BYTES: u64 = 0xaaaa_aaaa_aaaa_aaaa;
