//! Convention for unit tests: they belong in a module `tests`, either inline or in separate files.

use std::path::Path;

use proc_macro2::{TokenStream, TokenTree};
use syn::spanned::Spanned;

use crate::paths::{is_test_file, is_test_function};

/// Returns the line number and a description of each violation of the convention in the file at `path`. `text` is
/// the file's content, and `path` is relative to the crate's `src`.
///
/// # Errors
/// If `text` is not valid Rust.
pub fn misplaced_tests(path: &Path, text: &str) -> Result<Vec<(usize, String)>, String> {
    // Parsing is slow, so files without tests are skipped.
    if !text.contains("test") || is_test_file(path) {
        return Ok(Vec::new());
    }
    let file = syn::parse_file(text).map_err(|why| why.to_string())?;
    let mut wrong = Vec::new();
    items(&file.items, &mut wrong);
    Ok(wrong)
}

/// Reads the items of a module that is not a module of tests.
fn items(all: &[syn::Item], wrong: &mut Vec<(usize, String)>) {
    for item in all {
        match item {
            syn::Item::Mod(module) => {
                let (line, name) = (module.span().start().line, &module.ident);
                match (module.attrs.iter().any(names_test), name.to_string().as_str()) {
                    (true, "tests") => {}
                    (false, "tests") => wrong.push((line, "mod tests lacks #[cfg(test)]".to_string())),
                    (true, "testing") => fixtures(module, wrong),
                    (true, _) => {
                        wrong.push((
                            line,
                            format!("mod {name} is for tests, but is not called tests or testing"),
                        ));
                    }
                    (false, _) => items(module.content.as_ref().map_or(&[], |(_, all)| all), wrong),
                }
            }
            syn::Item::Fn(function) if function.attrs.iter().any(is_test_function) => {
                let line = function.sig.span().start().line;
                wrong.push((
                    line,
                    format!("the test {} is outside a module called `tests`", function.sig.ident),
                ));
            }
            _ => {}
        }
    }
}

/// Reports tests in a module of test helpers.
fn fixtures(module: &syn::ItemMod, wrong: &mut Vec<(usize, String)>) {
    items(module.content.as_ref().map_or(&[], |(_, all)| all), wrong);
}

/// True for a `cfg` that mentions `test` outside `not(…)`.
fn names_test(attribute: &syn::Attribute) -> bool {
    match &attribute.meta {
        syn::Meta::List(list) => list.path.is_ident("cfg") && mentions_test(list.tokens.clone()),
        _ => false,
    }
}

fn mentions_test(condition: TokenStream) -> bool {
    let mut is_negated = false;
    for token in condition {
        match &token {
            TokenTree::Ident(name) if name == "test" => return true,
            TokenTree::Group(group) if !is_negated && mentions_test(group.stream()) => return true,
            _ => {}
        }
        is_negated = matches!(&token, TokenTree::Ident(name) if name == "not");
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_in_modules_of_that_name() {
        let good = [
            ("a.rs", "#[cfg(test)] mod tests { mod deep { #[test] fn f() {} } }"),
            ("a.rs", "#[cfg(test)] mod tests; #[cfg(not(test))] mod real; #[cfg(test)] fn helper() {}"),
            ("a.rs", "#[cfg(all(test, unix))] mod tests;"),
            (
                "a.rs",
                "#[cfg(any(test, feature = \"testing\"))] pub mod testing; #[cfg(test)] mod testing { fn f() {} }",
            ),
            ("a/tests.rs", "mod subject; #[test] fn f() {}"),
            ("a/tests/subject.rs", "#[tokio::test] async fn f() {}"),
        ];
        for (path, text) in good {
            assert_eq!(misplaced_tests(Path::new(path), text), Ok(vec![]), "{text}");
        }
        let bad = [
            ("a.rs", "#[cfg(test)] mod a_tests;", "mod a_tests is for tests"),
            ("a.rs", "#[cfg(all(test, unix))] mod page;", "mod page is for tests"),
            ("a.rs", "mod tests;", "mod tests lacks #[cfg(test)]"),
            ("a_tests.rs", "#[test] fn f() {}", "the test f is outside"),
            ("a.rs", "mod inner { #[tokio::test] async fn f() {} }", "the test f is outside"),
            ("a.rs", "#[cfg(test)] mod testing { #[test] fn f() {} }", "the test f is outside"),
            ("testing.rs", "#[test] fn f() {}", "the test f is outside"),
        ];
        for (path, text, words) in bad {
            let found = misplaced_tests(Path::new(path), text).unwrap();
            assert!(matches!(found.as_slice(), [(1, what)] if what.starts_with(words)), "{text}: {found:?}");
        }
    }
}
