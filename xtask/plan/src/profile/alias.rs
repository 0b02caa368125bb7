//! Files that are an alias of a build: they contain `inherits` and `set`, as `cargo xtask optimize` writes them.
//!
//! The name of a profile is part of its plan, so a copy of a file under another name gives another build. By
//! contrast, a file with `set` is an alias: its plan, hash and folder are those of its parent with the same overrides
//! passed to `--set`.

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::Files;
use super::overrides::Override;

/// Content of an alias file.
#[derive(Debug)]
pub(super) struct Alias {
    /// Name of the profile.
    pub inherits: String,
    /// Overrides of the profile's keys.
    pub sets: Vec<Override>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AliasFile {
    inherits: String,
    #[serde(rename = "description")]
    _description: String,
    set: Vec<String>,
}

/// Reads the alias `name`, a file with `set`.
///
/// # Errors
/// If the file has a key other than `inherits`, `description` and `set`, or `set` contains an unknown key.
pub(super) fn of(files: &dyn Files, name: &str) -> Result<Alias> {
    let path = files.folder().join(format!("{name}.toml"));
    let text =
        files.text(name).with_context(|| format!("cannot read the build profile {}", path.display()))?;
    let file: AliasFile = toml::from_str(&text).with_context(|| {
        format!(
            "cannot parse {}: in addition to `set`, the file may only contain `inherits` and `description`",
            path.display()
        )
    })?;
    let parse = |text: &String| match text.parse::<Override>() {
        Ok(overriding) => Ok(overriding),
        Err(why) => bail!("{}: invalid entry {text:?} of `set`: {why}", path.display()),
    };
    Ok(Alias { sets: file.set.iter().map(parse).collect::<Result<_>>()?, inherits: file.inherits })
}

#[cfg(test)]
mod tests {
    use super::super::Lto;
    use crate::testing::{load, load_with};

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let profiles = concat!(env!("CARGO_MANIFEST_DIR"), "/../../profiles/build");
        for name in ["base", "native"] {
            let file = format!("{name}.toml");
            std::fs::copy(format!("{profiles}/{file}"), folder.path().join(file)).unwrap();
        }
        for (name, text) in files {
            std::fs::write(folder.path().join(format!("{name}.toml")), text).unwrap();
        }
        folder
    }

    #[test]
    fn another_name_is_the_same_profile() {
        let text = "inherits = \"native\"\ndescription = \"x\"\nset = [\"lto=thin\"]";
        let folder = folder(&[("mine", text)]);
        let (mine, same) =
            (load(folder.path(), "mine").unwrap(), load(folder.path(), "native+lto:thin").unwrap());
        assert_eq!(
            (mine.name.as_str(), mine.lto, mine.alias.as_deref()),
            ("native+lto:thin", Lto::Thin, Some("mine"))
        );
        assert_eq!((mine.file.as_str(), mine.sets.len()), ("native", 1));
        let mut other = mine.clone();
        other.alias = None;
        assert_eq!(other, same);
        // With further overrides, the build differs from the aliased build and has no alias.
        let further = load_with(folder.path(), "mine", &["repack=false".parse().unwrap()]).unwrap();
        assert_eq!((further.name.as_str(), further.alias), ("native+lto:thin+repack:false", None));
    }

    #[test]
    fn what_stands_for_nothing_is_told() {
        let cases = [
            (
                "key",
                "inherits = \"native\"\ndescription = \"x\"\nset = []\nlto = \"thin\"",
                "may only contain",
            ),
            (
                "bad",
                "inherits = \"native\"\ndescription = \"x\"\nset = [\"lto\"]",
                "invalid entry \"lto\" of `set`",
            ),
            ("typed", "inherits = \"native\"\ndescription = \"x\"\nset = 3", "cannot parse"),
            ("none", "inherits = \"absent\"\ndescription = \"x\"\nset = []", "absent"),
            ("ring", "inherits = \"ring\"\ndescription = \"x\"\nset = []", "in a cycle"),
            ("on", "inherits = \"two\"\ndescription = \"x\"\nset = []", "cannot inherit from"),
        ];
        let mut files: Vec<(&str, &str)> = cases.iter().map(|(name, text, _)| (*name, *text)).collect();
        files.push(("two", "inherits = \"native\"\ndescription = \"x\"\nset = []"));
        let folder = folder(&files);
        for (name, _, words) in cases {
            let error = format!("{:#}", load(folder.path(), name).unwrap_err());
            assert!(error.contains(words), "{name}: {error}");
        }
    }
}
