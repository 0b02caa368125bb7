//! Generated files in `docs/`. A test compares each with what the program says; with `UPDATE_DOCS=1` it writes the file instead.

use std::path::Path;

/// Environment variable that makes [`check`] write files.
const UPDATE: &str = "UPDATE_DOCS";

/// Compares the file at `path` with `text`. If `UPDATE_DOCS` is set, the file is written and nothing is compared.
///
/// # Panics
/// If the file differs, with the command that writes it, or if it cannot be written.
#[track_caller]
pub fn check(path: impl AsRef<Path>, text: &str) {
    let path = path.as_ref();
    if std::env::var_os(UPDATE).is_some() {
        std::fs::write(path, text).unwrap_or_else(|why| panic!("cannot write {}: {why}", path.display()));
        return;
    }
    let found = std::fs::read_to_string(path).unwrap_or_default();
    // Both texts in full would fill a terminal.
    let line = found.lines().zip(text.lines()).take_while(|(found, wanted)| found == wanted).count() + 1;
    assert!(
        found == text,
        "{} differs from what the program says, first in line {line}: run `{}` and review the change",
        path.display(),
        command()
    );
}

/// Returns `page` with `part` between the lines `<!-- NAME -->` and `<!-- end of NAME -->`. The first line may have more text
/// after the name and a colon.
///
/// # Panics
/// If `page` lacks one of the lines.
#[track_caller]
pub fn with_part(page: &str, name: &str, part: &str) -> String {
    let begin = [format!("<!-- {name} -->"), format!("<!-- {name}: ")];
    let from = begin
        .iter()
        .find_map(|begin| page.find(begin))
        .unwrap_or_else(|| panic!("the page has no {begin:?}"));
    let from = page[from..].find('\n').map_or(page.len(), |end| from + end + 1);
    let end = format!("<!-- end of {name} -->");
    let to = page[from..].find(&end).unwrap_or_else(|| panic!("the page has no {end:?}"));
    format!("{}{part}{}", &page[..from], &page[from + to..])
}

/// The command that writes the files of the running test.
fn command() -> String {
    let package = std::env::var("CARGO_PKG_NAME").unwrap_or_default();
    // libtest gives the thread of a test the name of the test.
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
        let path = std::env::temp_dir().join("anneal-no-such-page.md");
        check(path, "text");
    }
}
