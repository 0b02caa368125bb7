//! Digests of models, builds and settings.

use build_info::Sha256 as Hex;

/// A SHA-256 digest.
pub type Digest = [u8; 32];

/// The first `digits` digits of `digest`.
pub(super) fn hex(digest: &Digest, digits: usize) -> String {
    Hex::from_bytes(digest).as_str()[..digits].to_string()
}
