//! Three kinds of media that can contain a store.

mod folder;
mod http;
mod medium;
#[cfg(feature = "s3")]
mod s3;

use anyhow::{Context, Result};

use crate::location::Location;

pub use medium::{Refused, StoreBackend};

/// Opens the store at `location`.
///
/// # Errors
/// If the configuration of S3 is invalid.
pub fn open(location: &Location) -> Result<Box<dyn StoreBackend>> {
    Ok(match location {
        Location::Folder(path) => Box::new(folder::FolderStore::at(path)),
        Location::Http(url) => Box::new(http::Http::at(url)),
        #[cfg(feature = "s3")]
        Location::S3 { bucket, prefix } => {
            let s3 =
                s3::S3::at(bucket, prefix).with_context(|| format!("cannot use the store {location}"))?;
            Box::new(s3)
        }
        #[cfg(not(feature = "s3"))]
        Location::S3 { .. } => {
            return Err(base::exit::usage(format!("{location}: this program was compiled without S3")))
                .context("cannot open the store");
        }
    })
}
