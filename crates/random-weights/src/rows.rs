//! Random rows of weights.

use crate::half::f16_bits;
use crate::random::{TABLE, Xoshiro, normal_quantiles};

/// Quantiles of one normal distribution in half precision.
pub struct HalfTable(Box<[u16; TABLE]>);

impl HalfTable {
    /// Creates the table for the distribution with `mean` and standard deviation `std`.
    pub fn new(mean: f64, std: f64) -> Self {
        let mut table = Box::new([0; TABLE]);
        for (half, quantile) in table.iter_mut().zip(normal_quantiles()) {
            *half = f16_bits((mean + std * f64::from(*quantile)) as f32);
        }
        Self(table)
    }

    /// Appends `len` little-endian halves to `out`. Each 64-bit random number yields four values.
    pub fn append(&self, out: &mut Vec<u8>, len: usize, random: &mut Xoshiro) {
        let start = out.len();
        out.resize(start + 2 * len, 0);
        let value = |bits: u64| u64::from(self.0[usize::from(bits as u16)]);
        let mut fours = out[start..].chunks_exact_mut(8);
        for four in &mut fours {
            let bits = random.next_u64();
            let values =
                value(bits) | value(bits >> 16) << 16 | value(bits >> 32) << 32 | value(bits >> 48) << 48;
            four.copy_from_slice(&values.to_le_bytes());
        }
        for one in fours.into_remainder().chunks_exact_mut(2) {
            one.copy_from_slice(&(value(random.next_u64()) as u16).to_le_bytes());
        }
    }
}

/// Appends `len` little-endian floats to `out`, from the normal distribution with `mean` and standard deviation
/// `std`.
pub fn draw_normals(out: &mut Vec<u8>, len: usize, mean: f64, std: f64, random: &mut Xoshiro) {
    draw(out, len, random, |normal| mean + std * normal);
}

/// Appends `len` little-endian floats to `out`; each is `value` or `-value`.
pub fn draw_signs(out: &mut Vec<u8>, len: usize, value: f64, random: &mut Xoshiro) {
    draw(out, len, random, |normal| value.copysign(normal));
}

fn draw(out: &mut Vec<u8>, len: usize, random: &mut Xoshiro, value: impl Fn(f64) -> f64) {
    let quantiles = normal_quantiles();
    for _ in 0..len {
        let normal = f64::from(quantiles[usize::from(random.next_u64() as u16)]);
        out.extend((value(normal) as f32).to_le_bytes());
    }
}
