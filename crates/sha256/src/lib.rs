//! SHA-256 digest as 64 lower-case hexadecimal digits, the form used in records, plans and pins.

use std::fmt;
use std::io::{self, Read};

use serde::{Deserialize, Serialize};
use sha2::Digest as _;

/// SHA-256 digest, as 64 lower-case hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(try_from = "String", into = "String")]
pub struct Sha256(#[cfg_attr(feature = "schema", schemars(regex(pattern = r"^[0-9a-f]{64}$")))] String);

impl Sha256 {
    /// Computes the digest of `bytes`.
    pub fn of(bytes: impl AsRef<[u8]>) -> Self {
        Self::from_bytes(&sha2::Sha256::digest(bytes).into())
    }

    /// Computes the digest of everything that `input` yields until it ends.
    ///
    /// # Errors
    ///
    /// The first error of `input`, except [`io::ErrorKind::Interrupted`].
    pub fn of_reader(mut input: impl Read) -> io::Result<Self> {
        let mut hasher = sha2::Sha256::new();
        let mut buffer = [0; 64 << 10];
        loop {
            match input.read(&mut buffer) {
                Ok(0) => return Ok(hasher.into()),
                Ok(n) => hasher.update(&buffer[..n]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Creates a digest from its 32 bytes.
    pub fn from_bytes(bytes: &[u8; 32]) -> Self {
        Self(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// Returns all 64 digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the first 12 digits, enough to name a folder.
    pub fn short(&self) -> &str {
        &self.0[..12]
    }
}

impl From<sha2::Sha256> for Sha256 {
    /// Returns the digest of everything that `hasher` received.
    fn from(hasher: sha2::Sha256) -> Self {
        Self::from_bytes(&hasher.finalize().into())
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

    /// Digest of `abc`, from the examples of FIPS 180-4.
    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn a_digest_is_64_lower_case_hex_digits() {
        assert!(Sha256::try_from("ab".repeat(32)).is_ok());
        for wrong in ["", "ab", &"AB".repeat(32), &"zz".repeat(32)] {
            assert!(Sha256::try_from(wrong.to_string()).is_err(), "{wrong:?} was taken");
            assert!(serde_json::from_value::<Sha256>(wrong.into()).is_err(), "{wrong:?} was taken from JSON");
        }
    }

    #[test]
    fn bytes_a_reader_and_a_hasher_give_the_same_digest() {
        assert_eq!(Sha256::of("abc").as_str(), ABC);
        let parts = b"ab".as_slice().chain(b"c".as_slice());
        assert_eq!(Sha256::of_reader(parts).unwrap().as_str(), ABC);
        let mut hasher = sha2::Sha256::new();
        hasher.update("abc");
        assert_eq!(Sha256::from(hasher).as_str(), ABC);
        assert_eq!(Sha256::of("abc").short(), &ABC[..12]);
    }
}
