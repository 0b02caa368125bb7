//! Conversion to half precision.

/// Converts `value` to the bits of the nearest IEEE 754 binary16, with ties to even. A value that is too large
/// becomes infinity.
pub fn f16_bits(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = ((bits >> 16) & 0x8000) as u16;
    let magnitude = bits & 0x7fff_ffff;
    if magnitude > 0x7f80_0000 {
        return sign | 0x7e00; // not a number
    }
    if magnitude >= 0x4780_0000 {
        return sign | 0x7c00; // 65536 and more
    }
    if magnitude >= 0x3880_0000 {
        // Normal half: the exponent's bias changes from 127 to 15, and 13 bits are dropped. A carry out of the
        // mantissa correctly raises the exponent, up to infinity.
        let rebiased = magnitude - (112 << 23);
        return sign | (round_shift(rebiased, 13) as u16);
    }
    // Subnormal half: an integer multiple of 2^-24. A value below half of 2^-24 becomes zero.
    let exponent = magnitude >> 23;
    if exponent < 102 {
        return sign;
    }
    let mantissa = (magnitude & 0x007f_ffff) | 0x0080_0000;
    sign | (round_shift(mantissa, 126 - exponent) as u16)
}

/// Returns `value / 2^bits`, rounded to nearest, ties to even.
fn round_shift(value: u32, bits: u32) -> u32 {
    let half = 1 << (bits - 1);
    let odd = (value >> bits) & 1;
    (value + half - 1 + odd) >> bits
}

#[cfg(test)]
mod tests {
    use super::f16_bits;

    #[test]
    fn rounds_to_the_nearest_half() {
        let cases = [
            (0.0, 0x0000),
            (-0.0, 0x8000),
            (1.0, 0x3c00),
            (-2.0, 0xc000),
            (65504.0, 0x7bff),
            (65519.0, 0x7bff),
            (65520.0, 0x7c00),
            (f32::INFINITY, 0x7c00),
            (0.1, 0x2e66),
            (1.0 + 1.0 / 2048.0, 0x3c00), // tie, to even
            (1.0 + 3.0 / 2048.0, 0x3c02), // tie, to even
            (6.103_515_6e-5, 0x0400),     // the smallest normal
            (5.960_464_5e-8, 0x0001),     // the smallest subnormal
            (2.980_232_2e-8, 0x0000),     // half of it: tie, to even
            (2.980_233e-8, 0x0001),
        ];
        for (value, bits) in cases {
            assert_eq!(f16_bits(value), bits, "{value}");
        }
        assert_eq!(f16_bits(f32::NAN) & 0x7c00, 0x7c00);
        assert_ne!(f16_bits(f32::NAN) & 0x03ff, 0);
    }
}
