//! Text for terminals: escapes control characters, omits repeated causes, forms plurals, and suggests corrections
//! of misspelt names.

use std::borrow::Cow;
use std::error::Error;
use std::io::{self, ErrorKind};
use std::{fmt, iter};

/// Start of the hint line that follows an error message.
const HINT: &str = "\nhint: ";
/// Minimum similarity, from 0 to 1, between a misspelt name and a suggestion.
const SIMILAR: f64 = 0.8;
/// Maximum number of characters of a misspelt name that are compared.
const COMPARED: usize = 60;

/// Returns `text` on one line with control characters escaped, so that a file name cannot move the cursor. The hint
/// line of an error is appended after a semicolon.
pub fn printable(text: &str) -> Cow<'_, str> {
    match text.contains(HINT) {
        true => Cow::Owned(escaped(&with_inline_hint(text), steers).into_owned()),
        false => escaped(text, steers),
    }
}

/// Returns the error message `text` with its hint after a semicolon, for output on a single line.
pub fn with_inline_hint(text: &str) -> String {
    text.replace(HINT, "; ")
}

/// Splits an error message into the message and its hint. Splits at the last hint, because an earlier hint may come
/// from a file.
pub fn split_hint(text: &str) -> (&str, Option<&str>) {
    text.rsplit_once(HINT).map_or((text, None), |(text, hint)| (text, Some(hint)))
}

/// Returns the error message `text` without its hint.
pub fn without_hint(text: &str) -> &str {
    split_hint(text).0
}

/// Returns the lines that report `error`: its message after `begin`, its causes, and then the hints of all messages. If
/// no message has a hint, the hint is `fallback`, or depends on the error of the operating system. `escape` makes texts
/// printable.
pub fn report(
    error: &(dyn Error + 'static),
    begin: &str,
    fallback: Option<&str>,
    escape: fn(&str) -> Cow<'_, str>,
) -> String {
    let said = chain(error);
    let (mut lines, mut hints) = (String::new(), Vec::new());
    for (begin, text) in iter::once(begin).chain(iter::repeat("  caused by:")).zip(&said) {
        let (text, hint) = split_hint(text);
        lines += &format!("{begin} {}\n", escape(text));
        hints.extend(hint);
    }
    if hints.is_empty() {
        hints.extend(fallback.or_else(|| system_hint(error)));
    }
    lines.extend(hints.into_iter().map(|hint| format!("hint: {}\n", escape(hint))));
    lines
}

/// Returns a hint if the operating system refused to use a file.
fn system_hint(error: &(dyn Error + 'static)) -> Option<&'static str> {
    let mut next = Some(error);
    while let Some(cause) = next {
        let hint = cause.downcast_ref::<io::Error>().and_then(io_hint);
        if hint.is_some() {
            return hint;
        }
        next = cause.source();
    }
    None
}

/// Linux error number for symbolic links that form a loop. The variant of [`ErrorKind`] is unstable.
const ELOOP: i32 = 40;

/// Returns a hint for `error`.
fn io_hint(error: &io::Error) -> Option<&'static str> {
    match error.kind() {
        _ if error.raw_os_error() == Some(ELOOP) => Some("check the path: its symbolic links form a loop"),
        ErrorKind::FileTooLarge => Some("check that this is the right file"),
        ErrorKind::NotADirectory => Some("check the path: a part of it is not a folder"),
        ErrorKind::IsADirectory => Some("give the path of a file, not of a folder"),
        ErrorKind::PermissionDenied => Some("check the owner and the permissions of the path"),
        ErrorKind::ReadOnlyFilesystem => Some("choose a path on a writable file system"),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            Some("free some space, then run the same command again")
        }
        _ => None,
    }
}

/// Returns the entry of `names` that the user probably meant by the misspelt `name`.
pub fn nearest<'a>(name: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // A long name is not a misspelling, and its comparison would be slow.
    let name: String = name.chars().take(COMPARED).collect();
    let near = names.into_iter().map(|known| (strsim::jaro_winkler(&name, known), known));
    let (similarity, best) = near.max_by(|(one, _), (other, _)| one.total_cmp(other))?;
    (similarity > SIMILAR).then_some(best)
}

/// Escapes control characters like [`printable`], but keeps line breaks.
pub fn printable_lines(text: &str) -> Cow<'_, str> {
    escaped(text, |c| steers(c) && c != '\n' && c != '\t')
}

/// True for characters that control a terminal. Control characters can move the cursor, set the title or change the
/// clipboard. Bidirectional formatting characters reorder text (<https://trojansource.codes>).
fn steers(c: char) -> bool {
    c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn escaped(text: &str, is_escaped: fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if is_escaped(c) { shown.extend(c.escape_debug()) } else { shown.push(c) }
    }
    Cow::Owned(shown)
}

/// Formats `number` with the noun `one` in the singular or plural, as in `1 test` or `2 tests`.
pub fn count(number: impl fmt::Display, one: &str) -> String {
    let number = number.to_string();
    let ending = if number == "1" { "" } else { "s" };
    format!("{number} {one}{ending}")
}

/// Returns the messages of `error` and its causes, except causes that an earlier message already contains.
pub fn chain(error: &(dyn Error + 'static)) -> Vec<String> {
    let mut said = vec![error.to_string()];
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !said.iter().any(|before| before.contains(&text)) {
            said.push(text);
        }
        cause = error.source();
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Said(&'static str, Option<Box<Said>>);

    impl fmt::Display for Said {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Error for Said {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            self.1.as_deref().map(|cause| cause as _)
        }
    }

    #[test]
    fn control_characters_are_escaped() {
        let cases = [
            ("a.gguf", "a.gguf", "a.gguf"),
            ("Größe 模型.gguf", "Größe 模型.gguf", "Größe 模型.gguf"),
            ("a\nb\u{1b}[2Jc\td", "a\\nb\\u{1b}[2Jc\\td", "a\nb\\u{1b}[2Jc\td"),
            ("\u{9b}31m\r\0", "\\u{9b}31m\\r\\0", "\\u{9b}31m\\r\\0"),
            ("a\u{202e}b\u{2066}c", "a\\u{202e}b\\u{2066}c", "a\\u{202e}b\\u{2066}c"),
        ];
        for (text, one_line, lines) in cases {
            assert_eq!(printable(text), one_line);
            assert_eq!(printable_lines(text), lines);
        }
    }

    #[test]
    fn a_hint_stands_on_its_own_line_or_after_a_semicolon() {
        let text = "no a\nhint: make b\nhint: use c";
        assert_eq!(split_hint(text), ("no a\nhint: make b", Some("use c")));
        assert_eq!(split_hint("no a"), ("no a", None));
        assert_eq!(printable("no a\nhint: use \u{1b}c"), "no a; use \\u{1b}c");
    }

    #[test]
    fn an_error_ends_with_its_hints() {
        let plain = Said("no x\nhint: make it", None);
        let locked = io::Error::from(ErrorKind::PermissionDenied);
        let missing = io::Error::from(ErrorKind::NotFound);
        let shown = |error: &(dyn Error + 'static), fallback| report(error, "error:", fallback, printable);
        assert_eq!(shown(&plain, Some("try y")), "error: no x\nhint: make it\n");
        assert_eq!(shown(&Said("no x", None), Some("try y")), "error: no x\nhint: try y\n");
        assert_eq!(shown(&Said("no x", None), None), "error: no x\n");
        assert!(shown(&locked, None).ends_with("\nhint: check the owner and the permissions of the path\n"));
        assert!(shown(&locked, Some("try y")).ends_with("\nhint: try y\n"));
        // The error for a missing file already says what to check.
        assert!(!shown(&missing, None).contains("hint"));
    }

    #[test]
    fn one_is_singular_and_all_other_numbers_are_plural() {
        assert_eq!([0, 1, 2].map(|number| count(number, "test")), ["0 tests", "1 test", "2 tests"]);
        assert_eq!(
            [1.0, 1.5, f64::NAN].map(|number| count(number, "slot")),
            ["1 slot", "1.5 slots", "NaN slots"]
        );
    }

    #[test]
    fn a_cause_is_said_once() {
        let chain_of = |texts: &[&'static str]| {
            let error = texts.iter().rev().fold(None, |cause, text| Some(Box::new(Said(text, cause))));
            chain(&*error.expect("an error"))
        };
        let cases: [(&[&'static str], &[&str]); 4] = [
            (&["a"], &["a"]),
            (&["cannot read x", "no such file"], &["cannot read x", "no such file"]),
            (&["cannot read x: no such file", "no such file"], &["cannot read x: no such file"]),
            (&["a failed", "a failed", "why"], &["a failed", "why"]),
        ];
        for (texts, expected) in cases {
            assert_eq!(chain_of(texts), expected, "{texts:?}");
        }
    }
}
