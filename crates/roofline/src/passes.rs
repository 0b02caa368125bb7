//! Passes of a measurement.

/// Rates of all passes in ascending order; never empty.
#[derive(Clone, Debug, PartialEq)]
pub struct Passes(pub Vec<f64>);

impl Passes {
    pub fn best(&self) -> f64 {
        self.0.last().copied().unwrap_or(0.0)
    }

    pub fn median(&self) -> f64 {
        self.0.get(self.0.len() / 2).copied().unwrap_or(0.0)
    }
}
