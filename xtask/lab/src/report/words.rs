//! Numbers with nouns.

/// Formats a number with the noun `one` in the singular or plural.
pub fn count(n: usize, one: &str) -> String {
    format!("{n} {one}{}", if n == 1 { "" } else { "s" })
}
