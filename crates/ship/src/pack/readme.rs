//! What whoever unpacks an archive reads first. The repository's own README tells how it is built, which nobody does there.

use crate::order::Pack;

/// Words in `@` are filled in.
const TEXT: &str = include_str!("README.in.md");

/// The text for the archive of `order`.
pub fn text(order: &Pack) -> String {
    let words = [
        ("@NAME@", &order.name),
        ("@VERSION@", &order.version),
        ("@TARGET@", &order.target),
        ("@PROFILE@", &order.profile),
    ];
    words.into_iter().fold(TEXT.to_string(), |text, (word, value)| text.replace(word, value))
}
