//! What a machine can do at most: the roof over every figure (Williams, Waterman, Patterson: "Roofline", 2009).
//!
//! Decode reads every weight once for a token, so it cannot be faster than the read bandwidth allows; prefill works on
//! many tokens at once, so it cannot be faster than the dot products that the vector units manage.

use serde::{Deserialize, Serialize};

/// The measured limits of one machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Roofline {
    /// When it was measured, RFC 3339 in UTC.
    pub date: String,
    /// The CPU, as the host names it.
    pub cpu: String,
    /// Logical CPUs that the process was given.
    pub affinity: Vec<u32>,
    /// CPU quota in cores, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_quota: Option<f64>,
    /// One entry for each number of threads that was tried, ascending.
    pub rates: Vec<Rates>,
}

/// What a number of threads reaches together.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Rates {
    /// Threads, one a core.
    pub threads: u32,
    /// Bytes a second read from memory, from a buffer that fits no cache.
    pub read_bytes: f64,
    /// Multiply-adds a second of 8-bit integers into 32-bit sums, from registers.
    pub int8_macs: f64,
    /// Multiply-adds a second of 32-bit floats.
    pub f32_macs: f64,
    /// Multiply-adds a second of bf16 pairs into 32-bit floats, where the CPU has such an instruction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bf16_macs: Option<f64>,
}

impl Roofline {
    /// The rates of `threads` threads: of the nearest number not above it that was measured, else of the least.
    pub fn at(&self, threads: u32) -> Option<&Rates> {
        self.rates.iter().rev().find(|rates| rates.threads <= threads).or_else(|| self.rates.first())
    }

    /// The rates of just `threads` threads, if they were measured.
    pub fn exactly(&self, threads: u32) -> Option<&Rates> {
        self.rates.iter().find(|rates| rates.threads == threads)
    }

    /// The greatest read bandwidth at any number of threads, in bytes a second.
    pub fn read_bytes(&self) -> Option<f64> {
        self.rates.iter().map(|rates| rates.read_bytes).max_by(f64::total_cmp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_of_the_nearest_number_of_threads_below() {
        let rates = |threads, read_bytes| Rates {
            threads,
            read_bytes,
            int8_macs: 1.0,
            f32_macs: 1.0,
            bf16_macs: None,
        };
        let roofline = |rates| Roofline {
            date: String::new(),
            cpu: String::new(),
            affinity: vec![0],
            cpu_quota: None,
            rates,
        };
        let two = roofline(vec![rates(2, 30.0), rates(4, 20.0)]);
        for (threads, expected) in [(1, 2), (2, 2), (3, 2), (4, 4), (9, 4)] {
            assert_eq!(two.at(threads).map(|rates| rates.threads), Some(expected), "{threads}");
        }
        assert_eq!(two.exactly(4).map(|rates| rates.threads), Some(4));
        assert_eq!(two.exactly(3), None);
        assert_eq!(two.read_bytes(), Some(30.0));
        assert_eq!(roofline(Vec::new()).at(1), None);
    }
}
