//! Settings that make a model differ from its file: adapters that change its weights, and the RoPE scaling of its
//! contexts.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use build_info::{Bytes, Sha256 as Hex};
use gguf::GgufFile;
use sha2::{Digest as _, Sha256};

use crate::error::{Error, Result};
use crate::rope::Rope;

/// Adapters and RoPE scaling for every context of a model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Variant {
    /// Adapters. All of them are added to the weights.
    pub adapters: Vec<Adapter>,
    /// RoPE scaling.
    pub rope: Rope,
}

/// LoRA adapter and its scale.
#[derive(Clone, Debug, PartialEq)]
pub struct Adapter {
    /// Path of the GGUF file.
    pub path: PathBuf,
    /// Scale of the adapter: 1 applies the adapter as trained, 0 disables it.
    pub scale: f32,
}

/// Maximum absolute value of a scale; a larger value is assumed to be a typo.
const MOST: f32 = 1000.0;

impl FromStr for Adapter {
    type Err = String;

    /// Parses `FILE` or `FILE:SCALE`.
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let (path, scale) = match text.rsplit_once(':').map(|(path, scale)| (path, scale.parse::<f32>())) {
            Some((path, Ok(scale))) => (path, scale),
            _ => (text, 1.0),
        };
        if path.is_empty() {
            return Err(format!("{text:?} contains no file name\nhint: use FILE or FILE:SCALE"));
        }
        match (-MOST..=MOST).contains(&scale) {
            true => Ok(Adapter { path: PathBuf::from(path), scale }),
            false => Err(format!(
                "the scale {scale} is out of range: use -{MOST} to {MOST} (1 applies the adapter as trained)"
            )),
        }
    }
}

impl Variant {
    /// Fills in missing settings from `other`.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        let adapters = if self.adapters.is_empty() { other.adapters } else { self.adapters };
        Variant { adapters, rope: self.rope.or(other.rope) }
    }

    /// Checks that the variant is compatible with a model. `model` contains the model's files. Returns the size of the
    /// adapters' weights.
    ///
    /// # Errors
    /// [`Error::Usage`] for RoPE, [`Error::BadModel`] and [`Error::Adapter`] for an adapter.
    pub fn check_model(&self, model: &[&GgufFile]) -> Result<Bytes> {
        if let Some(first) = model.first() {
            self.rope.check_model(first)?;
        }
        let mut size = Bytes(0);
        for adapter in &self.adapters {
            let file = GgufFile::open(&adapter.path)?;
            let own = gguf::adapter::check(&file, model)
                .map_err(|why| Error::Adapter { path: adapter.path.clone(), why })?;
            size = Bytes(size.0.saturating_add(own.0));
        }
        Ok(size)
    }

    /// Returns a digest of the adapters, with `digits` hexadecimal digits; `None` if the variant has no adapters. An
    /// adapter that cannot be read makes the digest unique.
    pub fn digest(&self, digits: usize) -> Option<String> {
        if self.adapters.is_empty() {
            return None;
        }
        let mut all = Sha256::new();
        for adapter in &self.adapters {
            all.update(adapter.scale.to_le_bytes());
            match of(&adapter.path) {
                Ok(digest) => all.update(digest),
                Err(_) => {
                    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
                    all.update(now.map_or(0, |now| now.as_nanos()).to_le_bytes());
                }
            }
        }
        let digest: [u8; 32] = all.finalize().into();
        Some(Hex::from_bytes(&digest).as_str()[..digits.min(64)].to_string())
    }

    /// Describes the adapters as text, for `info --explain`.
    pub fn adapters_in_words(&self) -> String {
        let words = |adapter: &Adapter| format!("{}:{}", adapter.path.display(), adapter.scale);
        match self.adapters.is_empty() {
            true => "none".to_string(),
            false => self.adapters.iter().map(words).collect::<Vec<_>>().join(" "),
        }
    }
}

fn of(path: &Path) -> std::io::Result<[u8; 32]> {
    let mut file = std::fs::File::open(path)?;
    let (mut digest, mut part) = (Sha256::new(), vec![0; 1 << 16]);
    loop {
        match file.read(&mut part)? {
            0 => return Ok(digest.finalize().into()),
            read => digest.update(&part[..read]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_adapter_is_a_file_and_a_scale() {
        let is = |path: &str, scale| Ok(Adapter { path: PathBuf::from(path), scale });
        let cases = [
            ("a.gguf", is("a.gguf", 1.0)),
            ("a.gguf:0.5", is("a.gguf", 0.5)),
            ("/x:y/a.gguf:-1", is("/x:y/a.gguf", -1.0)),
            ("/x:y/a.gguf", is("/x:y/a.gguf", 1.0)),
        ];
        for (text, expected) in cases {
            assert_eq!(text.parse::<Adapter>(), expected, "{text}");
        }
        for text in ["", ":1", "a:NaN", "a:inf", "a:1e9"] {
            assert!(text.parse::<Adapter>().is_err(), "{text}");
        }
    }
}
