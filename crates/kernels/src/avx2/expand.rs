//! Expands packed blocks into the operands of the tiles: whole codes, pairs of 16-bit scales, F32 scales.
//!
//! Expanded blocks are small enough for the first-level cache and serve all columns of a batch.

use std::arch::x86_64::*;

use crate::format::{FORMATS, Format, IQ4_VALUES, MXFP4_VALUES, SMALL, SUPER};
use crate::instruction_set::InstructionSet;
use crate::panel::{BlockParts, GROUP, GROUPS, Planes, ROWS};

/// A super-block of a panel with codes that are multiplied as unsigned bytes.
#[repr(C, align(64))]
pub struct SuperBlock {
    /// Codes, group by group.
    pub codes: [u8; SUPER * ROWS],
    /// Integer scale of each sub-block and row, and the scale shifted to the left by the number of bits that
    /// [`super_block`] is given.
    pub scales: [[[i16; 2]; ROWS]; 16],
    /// For each row, integer factors of the activation sums of two consecutive sub-blocks: minima, or negated offsets
    /// times scales.
    pub factors: [[[i16; 2]; ROWS]; 8],
    /// Float scale of each row.
    pub d: [f32; ROWS],
    /// Float scale of each row's minima, negated.
    pub m: [f32; ROWS],
}

/// A super-block of a panel with codes that are multiplied as 16-bit integers.
#[repr(C, align(64))]
pub struct WideSuperBlock {
    /// Codes: for each group, elements 0 and 2 of each row, then elements 1 and 3.
    pub codes: [i16; SUPER * ROWS],
    /// Integer scale of each sub-block and row.
    pub scales: [[i32; ROWS]; 8],
    /// Float scale of each row.
    pub d: [f32; ROWS],
}

/// A block of 32 elements with codes that are multiplied as unsigned bytes.
#[repr(C, align(64))]
pub struct SmallBlock {
    /// Codes, group by group.
    pub codes: [u8; SMALL * ROWS],
    /// Float scale of each row.
    pub d: [f32; ROWS],
    /// Float minimum of each row.
    pub m: [f32; ROWS],
}

/// A block of 32 elements with codes that are multiplied as 16-bit integers.
#[repr(C, align(64))]
pub struct WideSmallBlock {
    /// Codes, as in [`WideSuperBlock`].
    pub codes: [i16; SMALL * ROWS],
    /// Float scale of each row.
    pub d: [f32; ROWS],
}

/// Returns the codes of group `group` in half `half` of the rows, from the unit at `unit`.
///
/// # Safety
/// `unit` must be valid for reads of [`Planes::unit_bytes`] bytes.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub unsafe fn codes<const F: usize>(unit: *const u8, group: usize, half: usize) -> __m256i {
    let format = const { FORMATS[F] };
    let planes = Planes::of(format);
    let mut plane = unit;
    // Reads the byte that contains the code's bits, shifted right by `right` bits; other bits are masked out later.
    let mut read = |each: usize, width: u32, shift: u32| {
        // SAFETY: the unit contains the planes in this order.
        let bytes = unsafe { _mm256_loadu_si256(plane.add(group / each * GROUP + 32 * half).cast()) };
        plane = plane.wrapping_add(GROUPS / each * GROUP);
        let place = (group % each) as u32 * width;
        // A shift of 16-bit lanes moves bits between bytes; the mask removes them.
        let moved = if place >= shift {
            _mm256_srl_epi16(bytes, _mm_cvtsi32_si128((place - shift) as i32))
        } else {
            _mm256_sll_epi16(bytes, _mm_cvtsi32_si128((shift - place) as i32))
        };
        _mm256_and_si256(moved, _mm256_set1_epi8((((1u32 << width) - 1) << shift) as i8))
    };
    let mut code = _mm256_setzero_si256();
    if planes.bytes {
        code = read(1, 8, 0);
    }
    if planes.nibbles {
        code = read(2, 4, 0);
    }
    if planes.pairs {
        code = _mm256_or_si256(code, read(4, 2, planes.pair_shift()));
    }
    if planes.bits {
        code = _mm256_or_si256(code, read(8, 1, planes.bit_shift()));
    }
    match format {
        Format::Iq4Nl | Format::Iq4Xs => _mm256_shuffle_epi8(table(&IQ4_VALUES), code),
        Format::Mxfp4 => {
            let offset = _mm256_set1_epi8(InstructionSet::AvxVnni.offset(format) as i8);
            _mm256_shuffle_epi8(_mm256_add_epi8(table(&MXFP4_VALUES), offset), code)
        }
        _ => code,
    }
}

/// Returns the codes like [`codes`], with 128 added to signed bytes.
///
/// # Safety
/// Same as for [`codes`].
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub unsafe fn unsigned_codes<const F: usize>(unit: *const u8, group: usize, half: usize) -> __m256i {
    // SAFETY: the caller's contract.
    let codes = unsafe { codes::<F>(unit, group, half) };
    match const { FORMATS[F].has_signed_bytes() } {
        true => _mm256_xor_si256(codes, _mm256_set1_epi8(i8::MIN)),
        false => codes,
    }
}

/// Returns a register with the table in both halves.
#[target_feature(enable = "avx2")]
#[inline]
fn table(values: &[i8; 16]) -> __m256i {
    // SAFETY: the table has 16 bytes.
    _mm256_broadcastsi128_si256(unsafe { _mm_loadu_si128(values.as_ptr().cast()) })
}

/// Writes a unit's codes as unsigned bytes.
///
/// # Safety
/// `unit` must be valid for reads of a unit, `out` for writes of 512 bytes, and `out` aligned to 32 bytes.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
unsafe fn narrow_unit<const F: usize>(unit: *const u8, out: *mut u8) {
    for group in 0..GROUPS {
        for half in 0..2 {
            // SAFETY: the caller's contract.
            unsafe {
                let codes = unsigned_codes::<F>(unit, group, half);
                _mm256_store_si256(out.add(GROUP * group + 32 * half).cast(), codes);
            };
        }
    }
}

/// Writes a unit's codes as 16-bit integers.
///
/// # Safety
/// `unit` must be valid for reads of a unit, `out` for writes of 512 integers, and `out` aligned to 32 bytes.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
unsafe fn wide_unit<const F: usize>(unit: *const u8, out: *mut i16) {
    for group in 0..GROUPS {
        for half in 0..2 {
            // SAFETY: the caller's contract.
            unsafe {
                let bytes = codes::<F>(unit, group, half);
                let [even, odd] = widened(bytes);
                let out = out.add(GROUP * group + 16 * half);
                _mm256_store_si256(out.cast(), even);
                _mm256_store_si256(out.add(GROUP / 2).cast(), odd);
            }
        }
    }
}

/// Returns the even and the odd bytes as 16-bit integers.
#[target_feature(enable = "avx2")]
#[inline]
pub fn widened(bytes: __m256i) -> [__m256i; 2] {
    [_mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8), _mm256_srai_epi16(bytes, 8)]
}

/// Returns the float scales of the rows in half `half` of a packed block, or the float scales of its minima.
///
/// # Safety
/// `bits` must be the position of the scales of a packed block.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub unsafe fn eight_scales<const F: usize>(bits: *const u8, half: usize) -> __m256 {
    let format = const { FORMATS[F] };
    // SAFETY: the caller's contract.
    unsafe {
        if format == Format::Mxfp4 {
            let scales: [f32; 8] =
                std::array::from_fn(|row| format.scale(u16::from(*bits.add(8 * half + row))));
            return _mm256_loadu_ps(scales.as_ptr());
        }
        _mm256_cvtph_ps(_mm_loadu_si128(bits.add(16 * half).cast()))
    }
}

/// Writes sixteen F16 as F32.
///
/// # Safety
/// `bits` must be valid for reads of 32 bytes.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
unsafe fn halves(bits: *const u8, out: &mut [f32; ROWS], negate: bool) {
    for half in 0..2 {
        // SAFETY: the caller's contract; the array has 16 floats.
        unsafe {
            let floats = _mm256_cvtph_ps(_mm_loadu_si128(bits.add(16 * half).cast()));
            let sign = _mm256_set1_ps(if negate { -0.0 } else { 0.0 });
            _mm256_storeu_ps(out.as_mut_ptr().add(8 * half), _mm256_xor_ps(floats, sign));
        }
    }
}

/// Returns sixteen signed bytes as 16-bit integers.
///
/// # Safety
/// `bytes` must be valid for reads of 16 bytes.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn sixteen(bytes: *const u8) -> __m256i {
    // SAFETY: the caller's contract.
    _mm256_cvtepi8_epi16(unsafe { _mm_loadu_si128(bytes.cast()) })
}

/// Returns pairs of 16-bit integers, `low[row]` and `high[row]` for each row.
#[target_feature(enable = "avx2")]
#[inline]
pub fn interleaved(low: __m256i, high: __m256i) -> [__m256i; 2] {
    // The unpack instructions work within halves of a register: rows 0 to 3 and 8 to 11, then the others.
    let first = _mm256_unpacklo_epi16(low, high);
    let second = _mm256_unpackhi_epi16(low, high);
    [_mm256_permute2x128_si256(first, second, 0x20), _mm256_permute2x128_si256(first, second, 0x31)]
}

/// Writes the pairs of [`interleaved`].
#[target_feature(enable = "avx2")]
#[inline]
fn pairs(low: __m256i, high: __m256i, out: &mut [[i16; 2]; ROWS]) {
    let [first, second] = interleaved(low, high);
    // SAFETY: the array has 64 bytes.
    unsafe {
        let out = out.as_mut_ptr().cast::<__m256i>();
        _mm256_storeu_si256(out, first);
        _mm256_storeu_si256(out.add(1), second);
    }
}

/// Returns the integer scales of sub-block `sub` and its minima (or negated offsets times scales).
///
/// # Safety
/// `packed` must be valid for reads of a packed block.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub unsafe fn scales_and_factors<const F: usize>(packed: *const u8, sub: usize) -> (__m256i, __m256i) {
    let format = const { FORMATS[F] };
    let parts = BlockParts::of(format);
    // SAFETY: the caller's contract.
    unsafe {
        let scales = sixteen(packed.add(parts.scales + ROWS * sub));
        if format == Format::Q2K {
            let low = _mm256_and_si256(scales, _mm256_set1_epi16(15));
            let high = _mm256_and_si256(_mm256_srli_epi16(scales, 4), _mm256_set1_epi16(15));
            (low, high)
        } else if format.has_mins() {
            (scales, sixteen(packed.add(parts.mins + ROWS * sub)))
        } else {
            let offset = _mm256_set1_epi16(-InstructionSet::AvxVnni.offset(format) as i16);
            (scales, _mm256_mullo_epi16(scales, offset))
        }
    }
}

/// Expands a packed super-block.
///
/// # Safety
/// `packed` must be valid for reads of a packed block of `format`, and `out` for writes.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub unsafe fn super_block<const F: usize, const SHIFT: i32>(packed: *const u8, out: *mut SuperBlock) {
    let format = const { FORMATS[F] };
    let parts = BlockParts::of(format);
    // SAFETY: the caller's contract. Every field that a tile of this format reads is written.
    unsafe {
        let out = &mut *out;
        for unit in 0..SUPER / SMALL {
            let from = packed.add(unit * Planes::of(format).unit_bytes());
            narrow_unit::<F>(from, out.codes.as_mut_ptr().add(SMALL * ROWS * unit));
        }
        for pair in 0..SUPER / format.sub_len() / 2 {
            let (low, low_factor) = scales_and_factors::<F>(packed, 2 * pair);
            let (high, high_factor) = scales_and_factors::<F>(packed, 2 * pair + 1);
            pairs(low, _mm256_slli_epi16::<SHIFT>(low), &mut out.scales[2 * pair]);
            pairs(high, _mm256_slli_epi16::<SHIFT>(high), &mut out.scales[2 * pair + 1]);
            pairs(low_factor, high_factor, &mut out.factors[pair]);
        }
        halves(packed.add(parts.d), &mut out.d, false);
        if format.has_mins() {
            halves(packed.add(parts.m), &mut out.m, true);
        }
    }
}

/// Expands a packed super-block of a format with 8-bit values.
///
/// # Safety
/// `packed` must be valid for reads of a packed block of `format`, and `out` for writes.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub unsafe fn wide_super_block<const F: usize>(packed: *const u8, out: *mut WideSuperBlock) {
    let format = const { FORMATS[F] };
    let parts = BlockParts::of(format);
    // SAFETY: the caller's contract.
    unsafe {
        let out = &mut *out;
        for unit in 0..SUPER / SMALL {
            let from = packed.add(unit * Planes::of(format).unit_bytes());
            wide_unit::<F>(from, out.codes.as_mut_ptr().add(SMALL * ROWS * unit));
        }
        for (sub, scales) in out.scales.iter_mut().enumerate() {
            let bytes = packed.add(parts.scales + ROWS * sub);
            for half in 0..2 {
                let eight = _mm256_cvtepi8_epi32(_mm_loadl_epi64(bytes.add(8 * half).cast()));
                _mm256_storeu_si256(scales.as_mut_ptr().add(8 * half).cast(), eight);
            }
        }
        halves(packed.add(parts.d), &mut out.d, false);
    }
}

/// Expands a packed block of 32 elements.
///
/// # Safety
/// `packed` must be valid for reads of a packed block of `format`, and `out` for writes.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub unsafe fn small_block<const F: usize>(packed: *const u8, out: *mut SmallBlock) {
    let format = const { FORMATS[F] };
    let parts = BlockParts::of(format);
    // SAFETY: the caller's contract. Every field that a tile of this format reads is written.
    unsafe {
        let out = &mut *out;
        narrow_unit::<F>(packed, out.codes.as_mut_ptr());
        if format == Format::Mxfp4 {
            for (row, d) in out.d.iter_mut().enumerate() {
                *d = format.scale(u16::from(*packed.add(parts.d + row)));
            }
        } else {
            halves(packed.add(parts.d), &mut out.d, false);
        }
        if format.has_mins() {
            halves(packed.add(parts.m), &mut out.m, false);
        }
    }
}

/// Expands a packed block of 32 elements of a format with 8-bit values.
///
/// # Safety
/// `packed` must be valid for reads of a packed block of `format`, and `out` for writes.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub unsafe fn wide_small_block<const F: usize>(packed: *const u8, out: *mut WideSmallBlock) {
    let format = const { FORMATS[F] };
    // SAFETY: the caller's contract.
    unsafe {
        let out = &mut *out;
        wide_unit::<F>(packed, out.codes.as_mut_ptr());
        halves(packed.add(BlockParts::of(format).d), &mut out.d, false);
    }
}
