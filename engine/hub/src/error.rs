//! Why there is no model.

use std::io;
use std::path::PathBuf;

use build_info::Bytes;

/// An error of the hub. Its text says what was tried, why it failed and what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no cache.
    #[error("no folder for models: neither HF_HUB_CACHE nor HF_HOME nor XDG_CACHE_HOME nor HOME names one")]
    NoFolder,

    /// An address that is none.
    #[error("HF_ENDPOINT is {endpoint}: write an address, as in https://huggingface.co")]
    Endpoint {
        /// What it is.
        endpoint: String,
    },

    /// No client can be made.
    #[error("cannot make a client of the hub: {why}")]
    Client {
        /// Why.
        why: String,
    },

    /// The hub cannot be reached, or does not answer as it should.
    #[error("cannot {what}: {why}; {mend}")]
    Network {
        /// What was tried, with the address.
        what: String,
        /// Why.
        why: String,
        /// What to do.
        mend: &'static str,
    },

    /// The hub refuses.
    #[error("cannot {what}: {endpoint} answers {status}{said}; {mend}")]
    Refused {
        /// What was tried, with the address.
        what: String,
        /// Who answers.
        endpoint: String,
        /// The status of HTTP.
        status: u16,
        /// Its own words, with a colon before.
        said: String,
        /// What to do.
        mend: &'static str,
    },

    /// The model is not among the files.
    #[error("cannot take a model from {name}: {why}")]
    NoFile {
        /// What was asked for.
        name: String,
        /// What is there.
        why: String,
    },

    /// Nothing was fetched before.
    #[error("{name} is not in the cache, {}: run the command once without --offline (and HF_HUB_OFFLINE)", folder.display())]
    NotInCache {
        /// What was asked for.
        name: String,
        /// Where it would be.
        folder: PathBuf,
    },

    /// The hub tells no digest.
    #[error(
        "{file} cannot be verified: {endpoint} tells no size and SHA-256 for it; download it yourself, look at it, and \
         name it with -m"
    )]
    NoDigest {
        /// The file.
        file: String,
        /// Who should tell.
        endpoint: String,
    },

    /// What came is not what was promised.
    #[error(
        "{file} is not what the hub says it is: {why}; what was fetched of it is removed: try again, and tell whoever runs {endpoint}"
    )]
    Wrong {
        /// The file.
        file: String,
        /// How it differs.
        why: String,
        /// Where it came from.
        endpoint: String,
    },

    /// Something of another tool's is in the way.
    #[error("{} is in the cache and has {found}, where the hub says {expected}: it is not used; remove it, or name another folder by HF_HUB_CACHE", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// Its size.
        found: Bytes,
        /// What it should be.
        expected: Bytes,
    },

    /// There is not enough room.
    #[error("{file} needs {needed} more in {}, which has {available}: make room, or name another folder by HF_HUB_CACHE", folder.display())]
    NoRoom {
        /// The file.
        file: String,
        /// What it takes.
        needed: Bytes,
        /// What there is.
        available: Bytes,
        /// Where.
        folder: PathBuf,
    },

    /// The disk.
    #[error("cannot {what} {}: {source}{}", path.display(), mend(source))]
    Disk {
        /// What was tried.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },

    /// It came as promised, and is no model.
    #[error("what the hub has is no model that can be used: {source}")]
    Bad {
        /// What is wrong with it.
        source: gguf::ReadError,
    },
}

impl Error {
    /// Whether the same may do at another time: exit code 75.
    pub fn is_temporary(&self) -> bool {
        match self {
            Error::Network { .. } => true,
            Error::Refused { status, .. } => matches!(status, 408 | 425 | 429 | 500..),
            _ => false,
        }
    }

    /// What of the disk failed, for `map_err`.
    pub(super) fn disk(what: &'static str, path: &std::path::Path) -> impl Fn(io::Error) -> Error + use<> {
        let path = path.to_path_buf();
        move |source| Error::Disk { what, path: path.clone(), source }
    }
}

fn mend(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "; make room, or name another folder by HF_HUB_CACHE: what was fetched stays, and the next run goes on with it"
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "; name a folder that you may write by HF_HUB_CACHE"
        }
        _ => "",
    }
}
