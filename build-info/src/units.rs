//! Newtypes for quantities that would otherwise be a bare `u64` or `String`.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct Bytes(pub u64);

impl Bytes {
    /// Returns `n` kibibytes.
    pub const fn kib(n: u64) -> Self {
        Self(n << 10)
    }

    /// Returns `n` mebibytes.
    pub const fn mib(n: u64) -> Self {
        Self(n << 20)
    }

    /// Returns `n` gibibytes.
    pub const fn gib(n: u64) -> Self {
        Self(n << 30)
    }
}

impl fmt::Display for Bytes {
    /// Formats with binary units, and one decimal if it is significant: `64 KiB`, `1.5 GiB`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
        let mut value = self.0 as f64;
        let mut unit = 0;
        while value >= 1024.0 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        let text = if value < 10.0 && value.fract() > 0.05 {
            format!("{value:.1} {}", UNITS[unit])
        } else {
            format!("{value:.0} {}", UNITS[unit])
        };
        f.pad(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_read_like_a_person_would_say_them() {
        let cases = [
            (Bytes(0), "0 B"),
            (Bytes(1023), "1023 B"),
            (Bytes::kib(64), "64 KiB"),
            (Bytes(1536 << 20), "1.5 GiB"),
            (Bytes::gib(24), "24 GiB"),
            (Bytes(u64::MAX), "16777216 TiB"),
        ];
        for (bytes, expected) in cases {
            assert_eq!(bytes.to_string(), expected);
        }
    }
}
