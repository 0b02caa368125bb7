//! Name of a model on the hub: `owner/repo`, optionally followed by a quantisation or file, and by a revision, as in
//! `owner/repo:Q4_K_M@revision`.

use std::fmt;
use std::str::FromStr;

/// Branch that is used if the name gives no revision.
const MAIN: &str = "main";

/// Name of a model on the hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    repo: String,
    file: Option<String>,
    revision: Option<String>,
}

impl Name {
    /// Returns the repository as `owner/repo`.
    pub fn repo(&self) -> String {
        self.repo.clone()
    }

    /// Returns the requested quantisation or file name. `None` if the name contains neither.
    pub fn file(&self) -> Option<&str> {
        self.file.as_deref()
    }

    /// Returns the branch, tag or commit.
    pub fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or(MAIN)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.repo)?;
        if let Some(file) = &self.file {
            write!(out, ":{file}")?;
        }
        match &self.revision {
            Some(revision) => write!(out, "@{revision}"),
            None => Ok(()),
        }
    }
}

impl FromStr for Name {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            "not a model name\nhint: write OWNER/REPO, optionally with :QUANTISATION or :FILE and @REVISION, for example \
             bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M or OWNER/REPO:model.gguf@v2"
                .to_string()
        };
        let (rest, revision) = match text.rsplit_once('@') {
            Some((rest, revision)) => (rest, Some(revision)),
            None => (text, None),
        };
        let (repo, file) = match rest.split_once(':') {
            Some((repo, file)) => (repo, Some(file)),
            None => (rest, None),
        };
        let (owner, own) = repo.split_once('/').ok_or_else(wrong)?;
        let good = is_part(owner) && is_part(own) && file.is_none_or(is_path) && revision.is_none_or(is_path);
        match good {
            true => Ok(Name {
                repo: repo.to_string(),
                file: file.map(str::to_string),
                revision: revision.map(str::to_string),
            }),
            false => Err(wrong()),
        }
    }
}

/// True if `text` is safe as a single component of a path and of a URL.
fn is_part(text: &str) -> bool {
    let plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    plain && (1..=96).contains(&text.len()) && !text.starts_with('.') && !text.starts_with('-')
}

/// True if `text` is a relative path that cannot leave its base folder. Unlike [`is_part`], allows letters outside
/// ASCII.
pub(super) fn is_path(text: &str) -> bool {
    let good = |part: &str| !part.is_empty() && part != "." && part != "..";
    let plain = !text.contains(|letter: char| letter.is_control() || "\\:?#%@*".contains(letter));
    plain && text.len() <= 512 && text.split('/').all(good)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_written() {
        let cases = [
            ("a/b", ("a/b", None, "main")),
            ("a/b:Q4_K_M", ("a/b", Some("Q4_K_M"), "main")),
            ("a/b.c-d_e@v1", ("a/b.c-d_e", None, "v1")),
            ("a/b:x/y.gguf@refs/pr/3", ("a/b", Some("x/y.gguf"), "refs/pr/3")),
        ];
        for (text, (repo, file, revision)) in cases {
            let name: Name = text.parse().expect(text);
            assert_eq!((name.repo().as_str(), name.file(), name.revision()), (repo, file, revision));
            assert_eq!(name.to_string(), text);
        }
    }

    #[test]
    fn what_would_leave_its_folder_is_no_name() {
        let long = "a/".to_string() + &"b".repeat(97);
        for text in [
            "",
            "a",
            "/b",
            "a/",
            "a/b/c",
            "../b",
            "a/..",
            "a/.b",
            "a/b:",
            "a/b:../c",
            "a/b:/c",
            "a/b@",
            "a/b@../m",
            "a/b@a//b",
            "-a/b",
            "a/b c",
            "a/b:\n",
            "a\\b/c",
            "https://x/a/b",
            &long,
        ] {
            let why = text.parse::<Name>().expect_err(text);
            assert!(why.contains("OWNER/REPO"), "{why}");
        }
    }
}
