//! Minisign signatures. A signature proves who made an archive; a checksum only shows that the archive is intact.

use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, anyhow};
use base::exit;
use minisign_verify::{PublicKey, Signature};

use crate::files;
use crate::key::{self, Configured};

/// Maximum size of a key or signature, which has a few lines.
const LARGEST: u64 = 1 << 16;

/// Public key that must verify an archive's signature.
pub struct TrustedKey {
    key: PublicKey,
    /// Source of the key, for messages.
    pub from: String,
}

impl TrustedKey {
    /// Reads the key in `given`, which is a file or the key itself.
    ///
    /// # Errors
    /// If `given` is not a valid key.
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
            exit::usage(format!("the key from {from} is not a minisign public key ({error}): {given}"))
        })?;
        Ok(Self { key, from: from.to_string() })
    }

    /// Returns the key for `prefix`: the key that the user has `given`, else the key in the environment variable,
    /// else the key stored in the prefix.
    ///
    /// # Errors
    /// If the key cannot be read.
    pub fn configured(given: Option<&str>, prefix: &Path) -> Result<Option<Self>> {
        let Some(Configured { given, from }) = key::configured(given, Some(prefix))? else { return Ok(None) };
        let given = given.into_string().map_err(|_| exit::usage(format!("{from} is not UTF-8")))?;
        Self::read(&given, &from).map(Some)
    }

    /// Checks that `signature` is this key's signature of `content`.
    ///
    /// # Errors
    /// If the signature does not match.
    pub fn check(&self, mut content: impl Read, signature: &[u8], path: &Path) -> Result<()> {
        let text = std::str::from_utf8(signature).ok().context("it is not a text file");
        let signature = text.and_then(|text| Signature::decode(text).map_err(|error| anyhow!("{error}")));
        let signature =
            signature.with_context(|| format!("{} is not a minisign signature", path.display()))?;
        let refused = |error: minisign_verify::Error| {
            anyhow!(
                "signature mismatch: {} is not a valid signature of this archive for the key from {} ({error})\nhint: do \
                 not install this archive",
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

    /// Reads the signature file at `path`.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn read_signature(path: &Path) -> Result<Vec<u8>> {
        files::read_small(path, LARGEST)
    }
}
