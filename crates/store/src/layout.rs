//! Layout of a store. The first part of each path is the version of the layout.
//!
//! ```text
//! v1/objects/<sha256>.tar.zst             an archive, named after its digest; never changed
//! v1/builds/<key>.json                    an entry; the first entry of a key stays
//! v1/kinds/<kind>/<profile>.json          the newest entries for a kind of CPU, for servers without listings
//! v1/tuning/<key>/<cpu>.json              settings tuned with that build, named after the digest of the CPU's key
//! v1/probe                                in a bucket: a few bytes that its server refused to create twice
//! ```

use build_info::Sha256;
use build_info::tuning::CpuKey;

use crate::key;

/// Folder of the kinds.
pub const KINDS: &str = "v1/kinds";

/// Returns the path of the object with the digest `sha256`.
pub fn object(sha256: &Sha256) -> String {
    format!("v1/objects/{sha256}.tar.zst")
}

/// Returns the path of the entry of `key`.
pub fn build(key: &Sha256) -> String {
    format!("v1/builds/{key}.json")
}

/// Returns the path of the list of the newest entries of a kind.
pub fn newest(kind: &str, profile: &str) -> String {
    format!("{KINDS}/{}/{}.json", key::plain(kind), key::plain(profile))
}

/// Returns the path of the settings tuned on `cpu` with the build of `key`.
pub fn tuning(key: &Sha256, cpu: &CpuKey) -> String {
    format!("v1/tuning/{key}/{}.json", key::of_tuned(cpu))
}
