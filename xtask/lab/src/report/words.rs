//! Numbers in words.

/// Formats a number of things with the noun in singular or plural.
pub fn count(n: usize, one: &str) -> String {
    format!("{n} {one}{}", if n == 1 { "" } else { "s" })
}
