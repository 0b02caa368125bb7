//! Loops of multiply-adds.

/// Loop of multiply-adds.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    /// Name of the instruction set extension.
    pub name: &'static str,
    /// Number of multiply-adds in one round of the loop.
    pub macs: u64,
    /// Number of bits in each sum to which products are added.
    pub sum_bits: u32,
    /// Function that runs the given number of rounds with all operands equal to 1. The function returns the total
    /// sum, which equals the number of multiply-adds.
    pub run: fn(u64) -> f64,
}
