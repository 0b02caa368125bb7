//! Minimal parser of `.pc` files: paths of a library and its headers.

use std::fs;
use std::path::{Path, PathBuf};

/// Maximum number of substitution rounds. Variables may refer to other variables or, by mistake, to themselves.
const DEPTH: usize = 8;

/// Content of a `.pc` file.
#[derive(Debug)]
pub(super) struct PkgConfig {
    variables: Vec<(String, String)>,
    fields: Vec<(String, String)>,
}

impl PkgConfig {
    /// Reads the file at `path`; returns `None` if it cannot be read as text.
    pub(super) fn read(path: &Path) -> Option<Self> {
        let text = fs::read_to_string(path).ok()?;
        let folder = path.parent()?.to_string_lossy().into_owned();
        let mut file = Self { variables: vec![("pcfiledir".to_string(), folder)], fields: Vec::new() };
        for line in text.lines() {
            let line = line.trim();
            let Some(at) = line.find(['=', ':']).filter(|_| !line.starts_with('#')) else { continue };
            let (name, value) = (line[..at].trim().to_string(), line[at + 1..].trim().to_string());
            if line[at..].starts_with('=') { &mut file.variables } else { &mut file.fields }
                .push((name, value));
        }
        Some(file)
    }

    /// Returns the value of a variable, with references to other variables substituted.
    pub(super) fn variable(&self, name: &str) -> Option<String> {
        self.variables.iter().find(|(known, _)| known == name).map(|(_, value)| self.expand(value))
    }

    /// Returns the version, or `None` if the file states no version.
    pub(super) fn version(&self) -> Option<String> {
        let version = self.field("Version")?;
        (!version.is_empty() && !version.contains("${")).then_some(version)
    }

    /// Returns the folders of headers.
    pub(super) fn include_dirs(&self) -> Vec<PathBuf> {
        let words = words(&self.field("Cflags").unwrap_or_default());
        words.iter().filter_map(|word| word.strip_prefix("-I")).map(PathBuf::from).collect()
    }

    /// Returns the folders of libraries, and the libraries as `-lname` or as a path.
    pub(super) fn libraries(&self) -> (Vec<PathBuf>, Vec<String>) {
        let words = words(&self.field("Libs").unwrap_or_default());
        let dirs = words.iter().filter_map(|word| word.strip_prefix("-L")).map(PathBuf::from).collect();
        (dirs, words.into_iter().filter(|word| word.starts_with("-l") || word.starts_with('/')).collect())
    }

    fn field(&self, name: &str) -> Option<String> {
        self.fields.iter().find(|(known, _)| known == name).map(|(_, value)| self.expand(value))
    }

    fn expand(&self, text: &str) -> String {
        let mut text = text.to_string();
        for _ in 0..DEPTH {
            if !text.contains("${") {
                break;
            }
            for (name, value) in &self.variables {
                text = text.replace(&format!("${{{name}}}"), value);
            }
        }
        text
    }
}

/// Splits a text as a shell does, with the quoting that `.pc` files use: `-I"/a b/include"`, `-L/a\ b`.
fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match (c, quote) {
            ('\\', None) => word.get_or_insert_default().extend(chars.next()),
            ('"' | '\'', None) => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (_, Some(end)) if c == end => quote = None,
            (_, None) if c.is_whitespace() => words.extend(word.take()),
            _ => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_split_as_a_shell_does() {
        let cases: [(&str, &[&str]); 5] = [
            ("-L/usr/lib  -lopenblas", &["-L/usr/lib", "-lopenblas"]),
            ("-I\"/a b/include\" -DX", &["-I/a b/include", "-DX"]),
            ("-L/a\\ b -l'x y'", &["-L/a b", "-lx y"]),
            ("-I\"/open", &["-I/open"]),
            ("", &[]),
        ];
        for (text, expected) in cases {
            assert_eq!(words(text), expected, "{text}");
        }
    }

    #[test]
    fn variables_that_name_themselves_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.pc");
        fs::write(&path, "a=${b}/x\nb=${a}/y\nc=${pcfiledir}/../lib\nVersion: ${a}\nLibs: -L${c}\n").unwrap();
        let file = PkgConfig::read(&path).unwrap();
        assert_eq!(file.version(), None);
        assert_eq!(file.libraries().0, [folder.path().join("../lib")]);
        assert!(PkgConfig::read(&folder.path().join("none.pc")).is_none());
    }
}
