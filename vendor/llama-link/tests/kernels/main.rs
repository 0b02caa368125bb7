//! The kernels that our patches change, against plain arithmetic: shapes that no model of the gate has.

mod activations;
mod attention;
mod heads;
#[cfg(target_arch = "x86_64")]
mod rows;

// What the declarations name.
use llama_link as _;

/// Numbers in [-1, 1), the same in every run (Knuth's linear congruential generator, MMIX).
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    fn row(&mut self, length: usize) -> Vec<f32> {
        (0..length).map(|_| self.next()).collect()
    }
}
