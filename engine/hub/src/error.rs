//! Errors of the hub client.

use std::io;
use std::path::PathBuf;

use build_info::Bytes;

/// Error of the hub client. The text states the action, the cause and a remedy.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The cache folder is unknown, because no environment variable sets it.
    #[error(
        "cannot find a folder for models: HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME and HOME are not set\nhint: set HF_HUB_CACHE"
    )]
    NoFolder,

    /// `HF_ENDPOINT` is not a URL.
    #[error(
        "cannot use HF_ENDPOINT={endpoint}: not a URL\nhint: set it to a URL like https://huggingface.co"
    )]
    Endpoint {
        /// Value of `HF_ENDPOINT`.
        endpoint: String,
    },

    /// The HTTP client cannot be created.
    #[error("cannot create a client for the hub: {why}")]
    Client {
        /// Cause.
        why: String,
    },

    /// The hub cannot be reached, or its response violates the protocol.
    #[error("cannot {what}: {why}\nhint: {mend}")]
    Network {
        /// Action that failed, with the hub's address.
        what: String,
        /// Cause.
        why: String,
        /// Remedy.
        mend: &'static str,
    },

    /// The hub returned an error status.
    #[error("cannot {what}: {endpoint} returned {status}{said}\nhint: {mend}")]
    Refused {
        /// Action that failed, with the hub's address.
        what: String,
        /// Address of the hub.
        endpoint: String,
        /// HTTP status code.
        status: u16,
        /// Reason that the hub gave, in brackets with a leading space. Empty if the hub gave none.
        said: String,
        /// Remedy.
        mend: &'static str,
    },

    /// No file in the repository matches the name.
    #[error("cannot find a model in {name}: {why}")]
    NoFile {
        /// Name of the requested model.
        name: String,
        /// Cause, usually with a list of the repository's files.
        why: String,
    },

    /// The model is not in the cache, and downloads are disabled.
    #[error("cannot use {name} offline: it is not in the cache ({})\nhint: run the command once without --offline and HF_HUB_OFFLINE", folder.display())]
    NotInCache {
        /// Name of the requested model.
        name: String,
        /// Folder that was searched.
        folder: PathBuf,
    },

    /// The hub's listing contains no size or no SHA-256 for the file.
    #[error(
        "cannot verify {file}: {endpoint} sent no size or no SHA-256 for this file\nhint: download the file \
        yourself, check it, and pass its path with -m"
    )]
    NoDigest {
        /// Path of the file in the repository.
        file: String,
        /// Address of the hub.
        endpoint: String,
    },

    /// The downloaded bytes do not match the hub's listing.
    #[error(
        "cannot use the download of {file}: {why}; the partial download was removed\nhint: try again; if the error persists, report it to the operator of {endpoint}"
    )]
    Wrong {
        /// Path of the file in the repository.
        file: String,
        /// Difference from the listing.
        why: String,
        /// Address of the hub.
        endpoint: String,
    },

    /// A file that another tool wrote has the wrong size.
    #[error("cannot use {} from the cache: its size is {found}, but the hub lists {expected}\nhint: remove the file, or set HF_HUB_CACHE to another folder", path.display())]
    Foreign {
        /// Path of that file.
        path: PathBuf,
        /// Size of that file.
        found: Bytes,
        /// Size according to the hub.
        expected: Bytes,
    },

    /// The file system has too little free space.
    #[error("cannot download {file}: the download needs {needed} more in {}, but only {available} is available\nhint: free disk space, or set HF_HUB_CACHE to another folder", folder.display())]
    NoRoom {
        /// Path of the file in the repository.
        file: String,
        /// Number of bytes still to be downloaded.
        needed: Bytes,
        /// Number of bytes available on the file system.
        available: Bytes,
        /// Folder on that file system.
        folder: PathBuf,
    },

    /// A file operation failed.
    #[error("cannot {what} {}: {source}{}", path.display(), mend(source))]
    Disk {
        /// Operation that failed, as a verb phrase.
        what: &'static str,
        /// Path of the file or folder.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },

    /// The download is intact, but the file is not a usable model.
    #[error("cannot use the model from the hub: {source}")]
    Bad {
        /// Defect that the GGUF reader found.
        source: gguf::ReadError,
    },
}

impl Error {
    /// True if a later attempt may succeed. The program then exits with code 75 (`EX_TEMPFAIL`).
    pub fn is_temporary(&self) -> bool {
        match self {
            Error::Network { .. } => true,
            Error::Refused { status, .. } => matches!(status, 408 | 425 | 429 | 500..),
            _ => false,
        }
    }

    /// Returns a function for `map_err` that converts an I/O error of the operation `what` on `path`.
    pub(super) fn disk(what: &'static str, path: &std::path::Path) -> impl Fn(io::Error) -> Error + use<> {
        let path = path.to_path_buf();
        move |source| Error::Disk { what, path: path.clone(), source }
    }
}

fn mend(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "\nhint: free disk space, or set HF_HUB_CACHE to another folder; the next run resumes the download"
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "\nhint: set HF_HUB_CACHE to a folder that you can write to"
        }
        _ => "",
    }
}
