//! Roofline of a machine: upper bounds on its speed (Williams, Waterman, Patterson: "Roofline", 2009).
//!
//! Decode reads every weight once per token, so read bandwidth limits decode. Prefill processes many tokens together,
//! so the throughput of dot products in the vector units limits prefill.

use serde::{Deserialize, Serialize};

/// Version of the loops that measure a [`Roofline`]. The loop of version 1 computed each product of 8-bit integers
/// once for twelve sums, so its limit was too high on CPUs without VNNI.
pub const VERSION: u32 = 2;

/// Measured limits of one machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Roofline {
    /// Version of the loops; the current version is [`VERSION`].
    #[serde(default = "first")]
    pub version: u32,
    /// Date of the measurement, RFC 3339 in UTC.
    pub date: String,
    /// Name of the CPU, as the host reports it.
    pub cpu: String,
    /// Logical CPUs in the affinity mask of the process.
    pub affinity: Vec<u32>,
    /// CPU quota in cores; `None` if there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_quota: Option<f64>,
    /// Rates for each number of threads that was measured, ascending.
    pub rates: Vec<Rates>,
}

/// Total rates of all threads, for one number of threads.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Rates {
    /// Number of threads, one per core.
    pub threads: u32,
    /// Bytes read from memory per second, from a buffer larger than any cache.
    pub read_bytes: f64,
    /// Multiply-adds of 8-bit integers from registers, per second, with the fastest loop. CPUs without VNNI are fastest
    /// with 16-bit sums, which are wide enough only for weights with few bits.
    pub int8_macs: f64,
    /// Multiply-adds per second of 8-bit integers into 32-bit sums; `None` if [`int8_macs`](Self::int8_macs) uses
    /// 32-bit sums.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub int8_wide_macs: Option<f64>,
    /// Multiply-adds per second of 32-bit floats.
    pub f32_macs: f64,
    /// Multiply-adds per second of bf16 pairs into 32-bit floats; `None` if the CPU has no such instruction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bf16_macs: Option<f64>,
}

/// Version of files without a version field.
fn first() -> u32 {
    1
}

impl Roofline {
    /// Returns the rates of the largest measured number of threads up to `threads`, otherwise of the smallest
    /// measured number.
    pub fn at(&self, threads: u32) -> Option<&Rates> {
        self.rates.iter().rev().find(|rates| rates.threads <= threads).or_else(|| self.rates.first())
    }

    /// Returns the rates measured with exactly `threads` threads.
    pub fn exactly(&self, threads: u32) -> Option<&Rates> {
        self.rates.iter().find(|rates| rates.threads == threads)
    }

    /// Returns the greatest read bandwidth at any number of threads, in bytes per second.
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
            int8_wide_macs: None,
            f32_macs: 1.0,
            bf16_macs: None,
        };
        let roofline = |rates| Roofline {
            version: VERSION,
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
