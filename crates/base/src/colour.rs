//! Colours of messages on standard error.

use std::borrow::Cow;
use std::io::IsTerminal;

/// Colour of the word "error:".
pub const ERROR: &str = "31;1";

/// True if the user wants no colours: `NO_COLOR` is set and not empty (<https://no-color.org>).
pub fn are_unwanted() -> bool {
    std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
}

/// True if standard error is a terminal that supports cursor movement and colours.
pub fn is_capable() -> bool {
    std::io::stderr().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// True if messages on standard error have colours.
pub fn are_shown() -> bool {
    is_capable() && !are_unwanted()
}

/// Returns `text` with the SGR parameters `code`.
pub fn with_code(code: &str, text: &str) -> String {
    format!("\x1b[{code}m{text}\x1b[0m")
}

/// Returns `text` for standard error, with the SGR parameters `code` if colours are shown.
pub fn painted<'a>(code: &str, text: &'a str) -> Cow<'a, str> {
    match are_shown() {
        true => Cow::Owned(with_code(code, text)),
        false => Cow::Borrowed(text),
    }
}
