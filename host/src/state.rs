//! Where a user's programs keep what they have learned about the machine.

use std::ffi::OsString;
use std::path::PathBuf;

/// The folder for tuning records and rooflines: `$ANNEAL_STATE_DIR`, else `anneal` in `$XDG_STATE_HOME`, else
/// `.local/state/anneal` in `$HOME` (the XDG Base Directory Specification). `None` where none is set. Relative values
/// are passed over, as the specification demands.
pub fn folder() -> Option<PathBuf> {
    folder_of(|name| std::env::var_os(name))
}

fn folder_of(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let absolute = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute("ANNEAL_STATE_DIR")
        .or_else(|| Some(absolute("XDG_STATE_HOME")?.join("anneal")))
        .or_else(|| Some(absolute("HOME")?.join(".local/state/anneal")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_special_variable_wins() {
        let own = ("ANNEAL_STATE_DIR", "/a");
        let (xdg, home) = (("XDG_STATE_HOME", "/x"), ("HOME", "/h"));
        type Set<'a> = &'a [(&'a str, &'a str)];
        let cases: [(Set<'_>, Option<&str>); 5] = [
            (&[own, xdg, home], Some("/a")),
            (&[xdg, home], Some("/x/anneal")),
            (&[("XDG_STATE_HOME", "x"), home], Some("/h/.local/state/anneal")),
            (&[("ANNEAL_STATE_DIR", ""), home], Some("/h/.local/state/anneal")),
            (&[], None),
        ];
        for (set, expected) in cases {
            let value = |name: &str| set.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into());
            assert_eq!(folder_of(value), expected.map(PathBuf::from), "{set:?}");
        }
    }
}
