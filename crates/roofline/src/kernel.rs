//! Loops of multiply-adds.

/// A loop of multiply-adds.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    /// The instruction set extension.
    pub name: &'static str,
    /// Multiply-adds in one round of the loop.
    pub macs: u64,
    /// Runs that many rounds with ones for operands, and returns the sum of all sums: the multiply-adds that were done.
    pub run: fn(u64) -> f64,
}
