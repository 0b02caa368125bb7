//! Generated files in `docs/`. A test compares each file with the program's output; with `UPDATE_DOCS=1` the test
//! writes the file instead.

use std::path::Path;

/// Environment variable that makes [`check`] write files.
const UPDATE: &str = "UPDATE_DOCS";

/// Compares the file at `path` with `text`. If `UPDATE_DOCS` is set, writes `text` to the file instead.
///
/// # Panics
/// If the file differs or cannot be written. If the file differs, the message contains the command that updates the
/// file.
#[track_caller]
pub fn check(path: impl AsRef<Path>, text: &str) {
    check_by(path, text, &command());
}

/// Compares a file like [`check`], for a test that cannot be run with `cargo test -p PACKAGE TEST`. `command` is
/// the command that runs the test.
///
/// # Panics
/// If [`check`] would panic.
#[track_caller]
pub fn check_by(path: impl AsRef<Path>, text: &str, command: &str) {
    let path = path.as_ref();
    if std::env::var_os(UPDATE).is_none() {
        return compare(path, text, command);
    }
    if let Err(why) = std::fs::write(path, text) {
        panic!("cannot write {}: {why}", path.display());
    }
}

/// Fails with the name of `command` if the file at `path` differs from `text`.
#[track_caller]
fn compare(path: &Path, text: &str, command: &str) {
    let shown = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    let shown = shown.display();
    let found = std::fs::read_to_string(path).unwrap_or_default();
    // Two full texts would fill the terminal.
    let line = found.lines().zip(text.lines()).take_while(|(found, wanted)| found == wanted).count() + 1;
    assert!(
        found == text,
        "{shown} differs from the program's output, first in line {line}\nhint: run `{command}` and \
         review the change"
    );
}

/// Returns `page` with `part` between the lines `<!-- NAME -->` and `<!-- end of NAME -->`. In the first line, a colon
/// and more text may follow the name.
///
/// # Panics
/// If `page` lacks one of the lines.
#[track_caller]
pub fn with_part(page: &str, name: &str, part: &str) -> String {
    let (open, end) = (format!("<!-- {name}"), format!("<!-- end of {name} -->"));
    let mut found = page.match_indices(&open).map(|(at, _)| at + open.len());
    let begin = found.find(|at| [" -->", ": "].iter().any(|next| page[*at..].starts_with(next)));
    let from = begin.and_then(|at| Some(at + page[at..].find('\n')? + 1));
    let Some(from) = from else { panic!("the page has no line \"{open} -->\"") };
    let Some(length) = page[from..].find(&end) else { panic!("the page has no line {end:?}") };
    format!("{}{part}{}", &page[..from], &page[from + length..])
}

/// Returns the command that updates the files of the running test.
fn command() -> String {
    let package = std::env::var("CARGO_PKG_NAME").unwrap_or_default();
    // libtest names the thread of a test after the test.
    let thread = std::thread::current();
    format!("{UPDATE}=1 cargo test -p {package} {}", thread.name().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_page_is_replaced() {
        for begin in ["<!-- keys -->\n", "<!-- keys: from the table -->\n"] {
            let page = format!("a\n{begin}old\n<!-- end of keys -->\nb\n");
            assert_eq!(
                with_part(&page, "keys", "new\n"),
                format!("a\n{begin}new\n<!-- end of keys -->\nb\n")
            );
        }
    }

    #[test]
    #[should_panic(expected = "<!-- end of keys -->")]
    fn a_page_without_an_end_is_refused() {
        with_part("<!-- keys -->\nold\n", "keys", "");
    }

    #[test]
    #[should_panic(
        expected = "UPDATE_DOCS=1 cargo test -p generated tests::an_old_file_is_named_with_the_command_that_writes_it"
    )]
    fn an_old_file_is_named_with_the_command_that_writes_it() {
        compare(Path::new("no-such-page.md"), "text", &command());
    }
}
