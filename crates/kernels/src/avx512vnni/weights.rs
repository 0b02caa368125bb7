//! Reads the parts of a packed block: codes, integer scales, float scales.

use std::arch::x86_64::*;

use crate::format::{FORMATS, Format, IQ4_VALUES, MXFP4_VALUES};
use crate::instruction_set::InstructionSet;
use crate::panel::{BlockParts, GROUP, GROUPS, Planes, ROWS};

/// Returns the codes of group `G` of the unit at `unit` as unsigned bytes: four for each of sixteen rows.
///
/// # Safety
/// `unit` must be valid for reads of [`Planes::unit_bytes`] bytes.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
pub unsafe fn codes<const F: usize, const G: usize>(unit: *const u8) -> __m512i {
    let format = const { FORMATS[F] };
    let planes = Planes::of(format);
    let mut plane = unit;
    // Reads the bytes that contain the codes' bits, and moves these bits to their position within the code.
    let mut read = |each: usize, width: u32, shift: u32| {
        // SAFETY: the unit contains the planes in this order.
        let bytes = unsafe { _mm512_loadu_si512(plane.add(G / each * GROUP).cast()) };
        plane = plane.wrapping_add(GROUPS / each * GROUP);
        let place = (G % each) as u32 * width;
        // A shift of 16-bit lanes moves bits between bytes; the mask removes them.
        let moved = if place >= shift {
            _mm512_srl_epi16(bytes, _mm_cvtsi32_si128((place - shift) as i32))
        } else {
            _mm512_sll_epi16(bytes, _mm_cvtsi32_si128((shift - place) as i32))
        };
        _mm512_and_si512(moved, _mm512_set1_epi8((((1u32 << width) - 1) << shift) as i8))
    };
    let mut code = _mm512_setzero_si512();
    if planes.bytes {
        code = read(1, 8, 0);
    }
    if planes.nibbles {
        code = read(2, 4, 0);
    }
    if planes.pairs {
        code = _mm512_or_si512(code, read(4, 2, planes.pair_shift()));
    }
    if planes.bits {
        code = _mm512_or_si512(code, read(8, 1, planes.bit_shift()));
    }
    match format {
        Format::Iq4Nl | Format::Iq4Xs => {
            _mm512_shuffle_epi8(table(const { &raised(IQ4_VALUES, Format::Iq4Nl) }), code)
        }
        Format::Mxfp4 => _mm512_shuffle_epi8(table(const { &raised(MXFP4_VALUES, Format::Mxfp4) }), code),
        Format::Q8_0 => _mm512_xor_si512(code, _mm512_set1_epi8(i8::MIN)),
        _ => code,
    }
}

/// Returns the values that the codes of `format` represent, shifted to unsigned bytes by its offset.
const fn raised(mut values: [i8; 16], format: Format) -> [i8; 16] {
    let mut code = 0;
    while code < values.len() {
        values[code] = values[code].wrapping_add(InstructionSet::Avx512Vnni.offset(format) as i8);
        code += 1;
    }
    values
}

/// Returns a register with the table in each quarter.
#[target_feature(enable = "avx512f")]
#[inline]
fn table(values: &[i8; 16]) -> __m512i {
    // SAFETY: the table has 16 bytes.
    _mm512_broadcast_i32x4(unsafe { _mm_loadu_si128(values.as_ptr().cast()) })
}

/// Returns the integer scale of sub-block `sub` for each row.
///
/// # Safety
/// `packed` must be valid for reads of a packed block.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
pub unsafe fn scales<const F: usize>(packed: *const u8, sub: usize) -> __m512i {
    let format = const { FORMATS[F] };
    let parts = BlockParts::of(format);
    // SAFETY: the caller's contract.
    let bytes = unsafe { _mm_loadu_si128(packed.add(parts.scales + ROWS * sub).cast()) };
    match format {
        Format::Q2K => _mm512_cvtepi8_epi32(_mm_and_si128(bytes, _mm_set1_epi8(15))),
        _ => _mm512_cvtepi8_epi32(bytes),
    }
}

/// Returns the factors of the sums of activations in sub-blocks `2 * pair` and `2 * pair + 1`, side by side for each
/// row: minima, or negated offsets times scales.
///
/// # Safety
/// `packed` must be valid for reads of a packed block.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
pub unsafe fn factors<const F: usize>(packed: *const u8, pair: usize) -> __m512i {
    let format = const { FORMATS[F] };
    let parts = BlockParts::of(format);
    let at = 2 * ROWS * pair;
    // SAFETY: the caller's contract.
    let factors = unsafe {
        if format == Format::Q2K {
            let both = _mm512_cvtepu8_epi16(_mm256_loadu_si256(packed.add(parts.scales + at).cast()));
            _mm512_srli_epi16::<4>(both)
        } else if format.has_mins() {
            _mm512_cvtepu8_epi16(_mm256_loadu_si256(packed.add(parts.mins + at).cast()))
        } else {
            let scales = _mm512_cvtepi8_epi16(_mm256_loadu_si256(packed.add(parts.scales + at).cast()));
            _mm512_mullo_epi16(scales, _mm512_set1_epi16(-InstructionSet::Avx512Vnni.offset(format) as i16))
        }
    };
    side_by_side(factors)
}

/// Returns the scales of sub-blocks `2 * pair` and `2 * pair + 1`, side by side for each row.
///
/// # Safety
/// `packed` must be valid for reads of a packed block.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
pub unsafe fn scale_pairs<const F: usize>(packed: *const u8, pair: usize) -> __m512i {
    let format = const { FORMATS[F] };
    let at = BlockParts::of(format).scales + 2 * ROWS * pair;
    // SAFETY: the caller's contract.
    let bytes = unsafe { _mm256_loadu_si256(packed.add(at).cast()) };
    side_by_side(_mm512_cvtepi8_epi16(match format {
        Format::Q2K => _mm256_and_si256(bytes, _mm256_set1_epi8(15)),
        _ => bytes,
    }))
}

/// Interleaves the numbers of two sub-blocks by row: row 0 of both, row 1 of both, and so on.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn side_by_side(numbers: __m512i) -> __m512i {
    let order = const {
        let mut order = [0u16; 2 * ROWS];
        let mut at = 0;
        while at < 2 * ROWS {
            order[at] = (at / 2 + at % 2 * ROWS) as u16;
            at += 1;
        }
        order
    };
    // SAFETY: the array has 64 bytes.
    _mm512_permutexvar_epi16(unsafe { _mm512_loadu_si512(order.as_ptr().cast()) }, numbers)
}

/// Returns the float scales of a packed block for each row, or the float scales of its minima.
///
/// # Safety
/// `bits` must be the position of the scales of a packed block.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
pub unsafe fn float_scales<const F: usize>(bits: *const u8) -> __m512 {
    // SAFETY: the caller's contract.
    unsafe {
        if const { matches!(FORMATS[F], Format::Mxfp4) } {
            // Half of the power of two: its exponent is one less, and the two smallest are subnormal.
            let exponents = _mm512_cvtepu8_epi32(_mm_loadu_si128(bits.cast()));
            let one = _mm512_set1_epi32(1);
            let normal = _mm512_slli_epi32::<23>(_mm512_sub_epi32(exponents, one));
            let small = _mm512_sllv_epi32(_mm512_set1_epi32(0x0020_0000), exponents);
            return _mm512_castsi512_ps(_mm512_mask_mov_epi32(
                normal,
                _mm512_cmple_epu32_mask(exponents, one),
                small,
            ));
        }
        _mm512_cvtph_ps(_mm256_loadu_si256(bits.cast()))
    }
}

/// Returns 32 bits of a column in each lane: four codes, or two sums.
///
/// # Safety
/// `bytes` must be valid for reads of 4 bytes.
#[target_feature(enable = "avx512f")]
#[inline]
pub unsafe fn broadcast(bytes: *const u8) -> __m512i {
    // SAFETY: the caller's contract.
    _mm512_set1_epi32(unsafe { bytes.cast::<i32>().read_unaligned() })
}
