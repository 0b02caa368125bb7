//! Quoting of command-line words for a shell.

/// Quotes `word` for a POSIX shell. A word that needs no quoting is unchanged; any other word is put in single
/// quotes.
pub fn shell_quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=+,@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_string()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}
