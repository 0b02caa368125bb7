//! `--set KEY=VALUE`: overrides one key of a build profile. The value has the same type as in a file.

use std::str::FromStr;

use anyhow::Result;
use base::exit;
use build_info::Sha256;
use toml::{Table, Value};

use super::file::ProfileFile;

/// Key with its value as text: `threading=openmp`, `extra_flags=-fno-plt,-funroll-loops`. The name of a profile
/// contains a colon instead of `=`, because `bench compare` uses `=` in LABEL=PATH.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Override {
    key: String,
    value: String,
}

impl std::fmt::Display for Override {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(&format!("{}={}", self.key, self.value))
    }
}

impl FromStr for Override {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (key, value) = text
            .split_once(['=', ':'])
            .ok_or("the value is missing\nhint: use KEY=VALUE, such as threading=openmp")?;
        let (key, value) = (key.trim().to_string(), value.trim().to_string());
        let overriding = Override { key, value };
        overriding.parse()?;
        Ok(overriding)
    }
}

impl Override {
    /// Returns the override as a profile file with this one key.
    pub(super) fn file(&self) -> Result<ProfileFile> {
        self.parse().map_err(|why| exit::usage(format!("--set {}={}: {why}", self.key, self.value)))
    }

    /// Parses the value. A bare word is a string, and words separated by commas are a list, so TOML quotes are not
    /// needed.
    fn parse(&self) -> Result<ProfileFile, String> {
        if matches!(self.key.as_str(), "inherits" | "description") {
            return Err(format!(
                "`{}` cannot be overridden\nhint: use another profile, or write a profile file",
                self.key
            ));
        }
        let written = toml::from_str::<Table>(&format!("value = {}", self.value)).ok();
        let list = || Value::Array(self.value.split(',').map(|word| Value::String(word.into())).collect());
        let readings = [
            written.and_then(|mut table| table.remove("value")),
            Some(Value::String(self.value.clone())),
            (!self.value.starts_with('[')).then(list),
        ];
        let mut first_error = None;
        for value in readings.into_iter().flatten() {
            match ProfileFile::from_table(self.table(value)) {
                Ok(file) => return Ok(file),
                // Report the error of the first interpretation, which is the closest to the user's input.
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        Err(first_error.unwrap_or_default())
    }

    /// Returns the table for this key. `definitions.NAME=VALUE` sets an entry of the table `definitions`.
    fn table(&self, value: Value) -> Table {
        match self.key.split_once('.') {
            Some((outer, inner)) => Table::from_iter([(
                outer.to_string(),
                Value::Table(Table::from_iter([(inner.to_string(), value)])),
            )]),
            None => Table::from_iter([(self.key.clone(), value)]),
        }
    }
}

/// Splits a profile's name into the base name and the overrides.
pub(super) fn split(name: &str) -> Result<(&str, Vec<Override>)> {
    if name.contains('~') {
        return Err(exit::usage(format!(
            "{name:?} is a shortened build name and cannot be parsed\nhint: write the overrides out, as in \
             --profile 'native+extra_flags:-fno-plt,-fwrapv'"
        )));
    }
    let mut parts = name.split('+');
    let base = parts.next().unwrap_or_default();
    let overrides: Result<Vec<Override>, String> = parts.map(str::parse).collect();
    match overrides {
        Ok(overrides) => Ok((base, overrides)),
        Err(why) => Err(exit::usage(format!("build profile {name:?}: {why}"))),
    }
}

/// Sorts overrides by key, because their order does not change the build.
pub(super) fn sorted(overrides: impl Iterator<Item = Override>) -> Result<Vec<Override>> {
    let mut all: Vec<Override> = overrides.collect();
    all.sort();
    all.dedup();
    match all.windows(2).find(|pair| pair[0].key == pair[1].key) {
        Some(pair) => Err(exit::usage(format!(
            "`{}` is set twice, to {} and to {}",
            pair[0].key, pair[0].value, pair[1].value
        ))),
        None => Ok(all),
    }
}

/// Maximum length of the overrides in a name. With the hash after them, the name is a valid file name on every
/// system.
const LONGEST: usize = 160;

/// Returns `base` with its overrides as a valid file name. Characters that are invalid in file names are replaced,
/// and a digest keeps the resulting names distinct.
pub(super) fn name(base: &str, overrides: &[Override]) -> String {
    let exact = |set: &Override| format!("+{}:{}", set.key, set.value);
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let safe = |text: &str| -> String { text.chars().map(|c| if plain(c) { c } else { '_' }).collect() };
    let readable = |set: &Override| format!("+{}:{}", safe(&set.key), safe(&set.value));
    let all: String = overrides.iter().map(exact).collect();
    let mut name: String = overrides.iter().map(readable).collect();
    if name != all || name.len() > LONGEST {
        name.truncate(LONGEST);
        name = format!("{name}~{}", Sha256::of(all).short());
    }
    format!("{base}{name}")
}

/// Returns the file's description, followed by the overrides.
pub(super) fn description(of_file: String, overrides: &[Override]) -> String {
    let sets: Vec<String> = overrides.iter().map(|set| format!("{} = {}", set.key, set.value)).collect();
    if sets.is_empty() { of_file } else { format!("{of_file}; with {}", sets.join(", ")) }
}

#[cfg(test)]
mod tests {
    use build_info::switches::Allocator;

    use super::super::Threading;
    use super::*;
    use crate::testing::{load, load_with};

    fn profiles() -> std::path::PathBuf {
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../profiles/build")
    }

    fn sets(texts: &[&str]) -> Vec<Override> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn a_key_is_read_as_the_file_would_have_it() {
        let texts = [
            "threading=openmp",
            "repack=false",
            "allocator = \"mimalloc\"",
            "extra_flags=-fno-plt,-mprefer-vector-width=512",
            "definitions.GGML_X=1",
            "build_type=RelWithDebInfo",
            "defaults.flash_attention=off",
        ];
        let profile = load_with(&profiles(), "native", &sets(&texts)).unwrap();
        assert_eq!(profile.threading, Threading::Openmp);
        assert!(!profile.switches.repack && profile.switches.llamafile);
        assert_eq!(profile.switches.allocator, Allocator::Mimalloc);
        assert_eq!(profile.switches.extra_flags, ["-fno-plt", "-mprefer-vector-width=512"]);
        assert_eq!(profile.definitions["GGML_X"], "1");
        assert_eq!(profile.build_type, "RelWithDebInfo");
        assert_eq!(profile.defaults.to_string(), "flash_attention off");
        let list = load_with(&profiles(), "native", &sets(&[r#"extra_flags=["-a", "-b"]"#])).unwrap();
        assert_eq!(list.switches.extra_flags, ["-a", "-b"]);
    }

    #[test]
    fn the_name_tells_the_keys_and_leads_back_to_them() {
        let one = load_with(&profiles(), "native", &sets(&["threading=openmp", "repack=false"])).unwrap();
        let other = load_with(&profiles(), "native+repack:false", &sets(&["threading=openmp"])).unwrap();
        assert_eq!(one.name, "native+repack:false+threading:openmp");
        assert_eq!(one, other);
        assert_eq!(load(&profiles(), &one.name).unwrap(), one);
        assert!(
            one.description.ends_with("; with repack = false, threading = openmp"),
            "{}",
            one.description
        );

        let odd = |flag: &str| name("native", &sets(&[&format!("extra_flags={flag}")]));
        for flag in ["-I/a b", "-DX=\"/\"", "-DA=é"] {
            let name = odd(flag);
            assert!(name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.+:~".contains(&b)), "{name}");
        }
        assert_ne!(odd("-I/a"), odd("-I_a"));
        assert!(odd(&"-x".repeat(300)).len() < 200);
    }

    #[test]
    fn what_is_no_key_or_no_value_is_wrong_usage() {
        let cases = [
            ("threading", "the value is missing\nhint: use KEY=VALUE"),
            ("treading=openmp", "unknown key `treading`\nhint: did you mean threading?"),
            ("threading=opnmp", "`threading` has no value \"opnmp\"\nhint: did you mean openmp?"),
            ("repack=maybe", "`repack` must be true or false, not the string \"maybe\""),
            ("defaults.gpu_layers=most", "use 0 or more, \"all\" or \"auto\""),
            ("defaults.ngl=3", "no key `ngl`"),
            ("description=x", "cannot be overridden\nhint: use another profile"),
            ("inherits=portable", "cannot be overridden\nhint: use another profile"),
        ];
        for (text, expected) in cases {
            let error = text.parse::<Override>().unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
            let error = load(&profiles(), &format!("native+{text}")).unwrap_err();
            assert_eq!(exit::code_of(&error), 2, "{error}");
        }
        let digest = load_with(&profiles(), "native", &sets(&["extra_flags=-a,-b"])).unwrap().name;
        let error = load(&profiles(), &digest).unwrap_err();
        assert!(
            exit::code_of(&error) == 2 && error.to_string().contains("write the overrides out"),
            "{digest}: {error}"
        );
        let twice = load_with(&profiles(), "native+lto=thin", &sets(&["lto=off"])).unwrap_err();
        assert!(twice.to_string().contains("`lto` is set twice, to off and to thin"), "{twice}");
    }
}
