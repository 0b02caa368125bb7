//! SHA-256 of bytes.

use build_info::Sha256;
use sha2::Digest;

/// SHA-256 of some bytes.
pub fn digest(bytes: &[u8]) -> Sha256 {
    Sha256::from_bytes(&sha2::Sha256::digest(bytes).into())
}
