//! Tests that compare the kernels in Anneal's patches with plain arithmetic, for shapes that the gate's models do not
//! have.

mod activations;
mod attention;
mod heads;

// The crate llama_link links the declared functions.
use llama_link as _;

/// Generator of numbers in [-1, 1), identical in every run (Knuth's linear congruential generator MMIX).
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
