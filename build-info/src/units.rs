//! Newtypes for quantities that would otherwise be a bare `u64` or `String`.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct Bytes(pub u64);

impl Bytes {
    /// `n` kibibytes.
    pub const fn kib(n: u64) -> Self {
        Self(n << 10)
    }

    /// `n` mebibytes.
    pub const fn mib(n: u64) -> Self {
        Self(n << 20)
    }

    /// `n` gibibytes.
    pub const fn gib(n: u64) -> Self {
        Self(n << 30)
    }
}

impl fmt::Display for Bytes {
    /// Binary units, one decimal where it says something: `64 KiB`, `1.5 GiB`.
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

/// A SHA-256 digest, as 64 lower-case hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(try_from = "String", into = "String")]
pub struct Sha256(#[cfg_attr(feature = "schema", schemars(regex(pattern = r"^[0-9a-f]{64}$")))] String);

impl Sha256 {
    /// The digest whose bytes are `bytes`.
    pub fn from_bytes(bytes: &[u8; 32]) -> Self {
        Self(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// All 64 digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The first 12 digits, enough to name a folder.
    pub fn short(&self) -> &str {
        &self.0[..12]
    }
}

impl fmt::Display for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl TryFrom<String> for Sha256 {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        if text.len() == 64 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
            Ok(Self(text))
        } else {
            Err(format!("not a SHA-256 digest (64 lower-case hexadecimal digits): {text:?}"))
        }
    }
}

impl From<Sha256> for String {
    fn from(digest: Sha256) -> Self {
        digest.0
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

    #[test]
    fn a_digest_is_64_lower_case_hex_digits() {
        assert!(Sha256::try_from("ab".repeat(32)).is_ok());
        for wrong in ["", "ab", &"AB".repeat(32), &"zz".repeat(32)] {
            assert!(Sha256::try_from(wrong.to_string()).is_err(), "{wrong:?} was taken");
        }
    }
}
