//! Choice between a part of an attack and the whole attack.

/// Environment variable with which `cargo xtask test --hostile` requests every attack in full.
const VARIABLE: &str = "ANNEAL_HOSTILE";

/// Returns `whole` if all attacks were requested, otherwise `part`.
pub fn choose<T>(part: T, whole: T) -> T {
    match std::env::var_os(VARIABLE) {
        Some(_) => whole,
        None => part,
    }
}
