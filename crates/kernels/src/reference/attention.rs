//! The exact rule for attention.

use std::f32::consts::LOG2_E;

/// Numbers that turn the product of a query and a key into a score.
#[derive(Clone, Copy, Debug)]
pub struct Score {
    /// Factor that multiplies the product.
    pub scale: f32,
    /// Bound on the scores, or 0 for none.
    pub softcap: f32,
    /// Factor that multiplies the mask.
    pub slope: f32,
}

impl Score {
    /// Returns the numbers for query head `head` of `heads`. The slopes follow ALiBi (Press et al. 2021), as in
    /// `ggml_compute_forward_flash_attn_ext` (ggml 0.26.0).
    pub fn of(scale: f32, max_bias: f32, softcap: f32, head: usize, heads: usize) -> Self {
        let scale = if softcap == 0.0 { scale } else { scale / softcap };
        if max_bias <= 0.0 {
            return Self { scale, softcap, slope: 1.0 };
        }
        let power = 1usize << heads.ilog2();
        let base = |bias: f32| 2f32.powf(-bias / power as f32);
        let slope = if head < power {
            base(max_bias).powi(head as i32 + 1)
        } else {
            base(max_bias / 2.0).powi(2 * (head - power) as i32 + 1)
        };
        Self { scale, softcap, slope }
    }
}

/// Coefficients of the polynomial for `2^x` with `x` from -0.5 to 0.5, highest power first: its Taylor series,
/// `ln(2)^n / n!`. The remainder is below 6e-9.
pub const EXP2: [f32; 8] = [
    1.525_273_4e-5,
    1.540_353e-4,
    1.333_355_8e-3,
    9.618_129e-3,
    5.550_411e-2,
    2.402_265e-1,
    std::f32::consts::LN_2,
    1.0,
];
/// Reference exponent of a row that has seen no cell.
pub const NOTHING: i32 = i32::MIN;
/// Bound on exponents, so that they and their differences fit into 32-bit integers.
pub const LARGEST: f32 = (1 << 30) as f32;
/// Smallest exponent of a weight; smaller weights are 0.
pub const LEAST: i32 = -125;

/// Returns `2^(exponent - n)` and `n`, the rounded exponent.
fn split(exponent: f32) -> (f32, i32) {
    if exponent.is_nan() {
        return (exponent, NOTHING);
    }
    let exponent = exponent.clamp(-LARGEST, LARGEST);
    let whole = exponent.round_ties_even();
    let rest = exponent - whole;
    (EXP2[1..].iter().fold(EXP2[0], |power, factor| power.mul_add(rest, *factor)), whole as i32)
}

/// Returns the weight `e^score` of a score as a number near 1 and a power of two.
pub fn weight(score: f32) -> (f32, i32) {
    split(score * LOG2_E)
}

/// Returns a number near 1 times a power of two, or 0 if the power is below 2 to the power of [`LEAST`].
fn shift(value: f32, exponent: i64) -> f32 {
    match exponent {
        _ if value.is_nan() => value,
        _ if exponent >= i64::from(LEAST) => {
            f32::from_bits((i64::from(value.to_bits()) + (exponent << 23)) as u32)
        }
        _ => 0.0,
    }
}

/// Returns the hyperbolic tangent, exact to 1.2e-7: `(e^2x - 1) / (e^2x + 1)`.
pub fn tanh(value: f32) -> f32 {
    if value.is_nan() {
        return value;
    }
    let (power, whole) = split(value.clamp(-16.0, 16.0) * (2.0 * LOG2_E));
    let power = shift(power, i64::from(whole));
    (power - 1.0) / (power + 1.0)
}

/// Computes one row of attention: the output for `query` and the given cells, each with its mask, key and value.
///
/// The product of query and key has eight sums, one for each position modulo 8. A cell's weight is `2^(t - n)`, where
/// `t` is its score times `log2(e)` and `n` the largest rounded `t`; a cell with the mask minus infinity has no weight.
/// Weights and weighted values are added cell by cell, each with one fused multiply-add.
///
/// Until a kernel knows `n`, it divides its sums by other powers of two. This is exact, unless a sum is smaller than
/// `2^-125` of the largest weight.
pub fn attend(
    query: &[f32],
    cells: &[(f32, &[f32], &[f32])],
    sink: Option<f32>,
    score: &Score,
    out: &mut [f32],
) {
    let exponent = |mask: f32, key: &[f32]| {
        let mut sums = [0f32; 8];
        for (at, (q, k)) in query.iter().zip(key).enumerate() {
            sums[at % 8] = q.mul_add(*k, sums[at % 8]);
        }
        let [a, b, c, d, e, f, g, h] = sums;
        let mut s = (((a + b) + (c + d)) + ((e + f) + (g + h))) * score.scale;
        if score.softcap != 0.0 {
            s = score.softcap * tanh(s);
        }
        score.slope.mul_add(mask, s) * LOG2_E
    };
    let seen = cells.iter().filter(|cell| cell.0 != f32::NEG_INFINITY);
    let seen: Vec<_> = seen.map(|(mask, key, value)| (exponent(*mask, key), value)).collect();
    let seen: Vec<_> = seen.into_iter().filter(|(t, _)| *t != f32::NEG_INFINITY).collect();
    let sink = sink.map(weight);
    let exponents = seen.iter().map(|(t, _)| split(*t).1).chain(sink.map(|sink| sink.1));
    let reference = i64::from(exponents.max().unwrap_or(0));
    let mut total = sink.map_or(0.0, |(power, whole)| shift(power, i64::from(whole) - reference));
    out.fill(0.0);
    for (t, value) in seen {
        let (power, whole) = split(t);
        let weight = shift(power, i64::from(whole) - reference);
        total += weight;
        if weight != 0.0 {
            for (out, value) in out.iter_mut().zip(*value) {
                *out = weight.mul_add(*value, *out);
            }
        }
    }
    let factor = if total == 0.0 { 0.0 } else { 1.0 / total };
    out.iter_mut().for_each(|out| *out *= factor);
}
