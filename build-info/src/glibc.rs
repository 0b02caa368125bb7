//! Version of glibc, the C library. A program states the oldest version that it runs with.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Version of glibc, as in `2.28`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(with = "String"))]
pub struct Glibc {
    major: u32,
    minor: u32,
}

impl fmt::Display for Glibc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// Converts from (major, minor).
impl From<(u32, u32)> for Glibc {
    fn from((major, minor): (u32, u32)) -> Self {
        Self { major, minor }
    }
}

impl FromStr for Glibc {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number =
            |text: &str| text.parse::<u32>().ok().filter(|_| text.bytes().all(|b| b.is_ascii_digit()));
        let (major, minor) = text.split_once('.').ok_or("use a glibc version such as 2.28")?;
        match (number(major), number(minor)) {
            (Some(major), Some(minor)) => Ok(Self { major, minor }),
            _ => Err(format!("{text:?} is not a glibc version\nhint: use a version such as 2.28")),
        }
    }
}

impl TryFrom<String> for Glibc {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Glibc> for String {
    fn from(glibc: Glibc) -> Self {
        glibc.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_their_numbers() {
        let glibc = |text: &str| text.parse::<Glibc>().unwrap();
        assert!(glibc("2.4") < glibc("2.28"));
        for wrong in ["2", "2.", ".28", "2.28.1", "2.x", "+2.28", ""] {
            assert!(wrong.parse::<Glibc>().is_err(), "{wrong}");
        }
    }
}
