//! Signatures of minisign: who made an archive, where a sum only tells that it arrived whole.

use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, anyhow};
use base::exit;
use minisign_verify::{PublicKey, Signature};

use crate::files;
use crate::key::{self, Configured};

/// A key, or a signature, is a few lines.
const LARGEST: u64 = 1 << 16;

/// Who may sign, and where that is said.
pub struct TrustedKey {
    key: PublicKey,
    /// Where it was found, for messages.
    pub from: String,
}

impl TrustedKey {
    /// The one in `given`, a file or the key itself.
    pub fn read(given: &str, from: &str) -> Result<Self> {
        let path = Path::new(given);
        let key = if path.exists() {
            let text = files::read_small(path, LARGEST)?;
            let text = String::from_utf8_lossy(&text).into_owned();
            PublicKey::decode(&text).or_else(|_| PublicKey::from_base64(text.trim()))
        } else {
            PublicKey::from_base64(given.trim())
        };
        let key = key.map_err(|error| {
            exit::usage(format!(
                "the key of {from} is no public key of minisign, nor a file that holds one ({error}): {given}"
            ))
        })?;
        Ok(Self { key, from: from.to_string() })
    }

    /// The one that is to be used for `prefix`: given by hand, else of the environment, else kept there.
    pub fn configured(given: Option<&str>, prefix: &Path) -> Result<Option<Self>> {
        let Some(Configured { given, from }) = key::configured(given, Some(prefix))? else { return Ok(None) };
        let given = given.into_string().map_err(|_| exit::usage(format!("{from} is not UTF-8")))?;
        Self::read(&given, &from).map(Some)
    }

    /// Whether `signature` is this key's of what `content` holds.
    pub fn check(&self, mut content: impl Read, signature: &[u8], path: &Path) -> Result<()> {
        let text = std::str::from_utf8(signature).ok().context("it is no text");
        let signature = text.and_then(|text| Signature::decode(text).map_err(|error| anyhow!("{error}")));
        let signature =
            signature.with_context(|| format!("{} is no signature of minisign", path.display()))?;
        let refused = |error: minisign_verify::Error| {
            anyhow!(
                "{} is not the signature of this archive by the key of {} ({error}): do not install it",
                path.display(),
                self.from
            )
        };
        let mut stream = self.key.verify_stream(&signature).map_err(refused)?;
        let mut piece = vec![0; 1 << 16];
        loop {
            crate::interrupt::check()?;
            match content.read(&mut piece).context("cannot read the archive")? {
                0 => break,
                read => stream.update(&piece[..read]),
            }
        }
        stream.finalize().map_err(refused)
    }

    /// Reads a signature that lies at `path`.
    pub fn read_signature(path: &Path) -> Result<Vec<u8>> {
        files::read_small(path, LARGEST)
    }
}
