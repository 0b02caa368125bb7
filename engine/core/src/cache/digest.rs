//! Digests of models, builds and settings.

use build_info::Sha256 as Hex;

/// SHA-256 digest.
pub type Digest = [u8; 32];

/// Returns the first `digits` hexadecimal digits of `digest`.
pub(super) fn hex(digest: &Digest, digits: usize) -> String {
    Hex::from_bytes(digest).as_str()[..digits].to_string()
}
