//! Names of the types that a file defines.

use std::path::Path;

use crate::paths::{is_test, is_test_file};

/// Returns the line number and name of each type and trait that the file at `path` defines outside functions and
/// tests. `text` is the file's content, and `path` is relative to the crate's `src`.
///
/// # Errors
/// If `text` is not valid Rust.
pub fn type_names(path: &Path, text: &str) -> Result<Vec<(usize, String)>, String> {
    if is_test_file(path) {
        return Ok(Vec::new());
    }
    let file = syn::parse_file(text).map_err(|why| why.to_string())?;
    let mut names = Vec::new();
    items(&file.items, &mut names);
    Ok(names)
}

/// Reads the items of a module, except items that are only compiled for tests.
fn items(all: &[syn::Item], names: &mut Vec<(usize, String)>) {
    for item in all {
        let name = match item {
            syn::Item::Enum(item) => &item.ident,
            syn::Item::Struct(item) => &item.ident,
            syn::Item::Trait(item) => &item.ident,
            syn::Item::Type(item) => &item.ident,
            syn::Item::Union(item) => &item.ident,
            syn::Item::Mod(module) if !is_test(&module.attrs) => {
                items(module.content.as_ref().map_or(&[], |(_, all)| all), names);
                continue;
            }
            _ => continue,
        };
        names.push((name.span().start().line, name.to_string()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_named_outside_of_functions_and_tests() {
        let text = "struct A;\nenum B {}\ntrait C { type X; }\ntype D = u8;\nmod m { pub(crate) struct E; }\n\
                    impl C for A { type X = u8; }\nfn f() { struct G; }\n#[cfg(test)] mod tests { struct H; }";
        let found = type_names(Path::new("a.rs"), text).unwrap();
        let found: Vec<(usize, &str)> = found.iter().map(|(line, name)| (*line, name.as_str())).collect();
        assert_eq!(found, [(1, "A"), (2, "B"), (3, "C"), (4, "D"), (5, "E")]);
        assert_eq!(type_names(Path::new("a/tests/b.rs"), text), Ok(vec![]));
        assert_eq!(type_names(Path::new("a/tests.rs"), text), Ok(vec![]));
        assert!(type_names(Path::new("a.rs"), "struct {").is_err());
    }
}
