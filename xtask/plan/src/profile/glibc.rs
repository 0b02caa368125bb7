//! The key `glibc` of a profile.

use build_info::Glibc;
use serde::Deserialize;

/// Value of the key `glibc`: `host` (stored as `None`), or a version.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct GlibcChoice(pub(super) Option<Glibc>);

impl TryFrom<String> for GlibcChoice {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        if text == "host" { Ok(Self(None)) } else { text.parse().map(|glibc| Self(Some(glibc))) }
    }
}
