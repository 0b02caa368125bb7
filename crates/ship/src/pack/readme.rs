//! README in an archive. The repository's own README describes building, which does not apply to the users of an
//! archive.

use crate::order::Pack;

/// Template in which words between `@` are replaced.
const TEXT: &str = include_str!("README.in.md");

/// Returns the README for the archive of `order`.
pub fn text(order: &Pack) -> String {
    let words = [
        ("@NAME@", &order.name),
        ("@VERSION@", &order.version),
        ("@TARGET@", &order.target),
        ("@PROFILE@", &order.profile),
    ];
    words.into_iter().fold(TEXT.to_string(), |text, (word, value)| text.replace(word, value))
}
