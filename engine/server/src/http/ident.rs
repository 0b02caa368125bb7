//! Random IDs in answers.

use std::hash::{BuildHasher, Hasher, RandomState};

/// Returns a random ID of 32 hexadecimal digits after `kind` and a hyphen or underscore.
pub(super) fn answer_id(kind: &str) -> String {
    let random = || RandomState::new().build_hasher().finish();
    format!("{kind}{:016x}{:016x}", random(), random())
}

/// Returns a random ID for a tool call. It has nine letters and digits, because Mistral's templates reject other IDs.
pub(super) fn call_id() -> String {
    const SIGNS: &[u8] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    let mut random = RandomState::new().build_hasher().finish();
    let mut sign = || {
        let sign = SIGNS[(random % SIGNS.len() as u64) as usize];
        random /= SIGNS.len() as u64;
        char::from(sign)
    };
    (0..9).map(|_| sign()).collect()
}
