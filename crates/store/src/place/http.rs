//! Read-only store on a web server. Publishers write to the server's folder, or to S3.

use std::path::Path;

use anyhow::Result;
use base::exit;
use build_info::Bytes;
use install::fetch;

use super::medium::{Edit, StoreBackend};

/// Store behind a URL.
pub struct Http {
    url: String,
}

impl Http {
    /// Returns the store at `url`, which has no trailing `/`.
    pub fn at(url: &str) -> Self {
        Self { url: url.to_string() }
    }

    fn url(&self, path: &str) -> String {
        format!("{}/{path}", self.url)
    }

    fn read_only<T>(&self) -> Result<T> {
        Err(exit::usage(format!(
            "cannot write to {}: a store on a web server is read-only\nhint: publish to the server's folder, or \
             to s3://BUCKET/PREFIX",
            self.url
        )))
    }
}

impl StoreBackend for Http {
    fn small(&self, path: &str, most: Bytes) -> Result<Option<Vec<u8>>> {
        fetch::small_if_there(&self.url(path), most.0)
    }

    fn fetch(&self, path: &str, size: Bytes, to: &Path) -> Result<bool> {
        fetch::to_file_if_there(&self.url(path), to, size)
    }

    fn size(&self, _path: &str) -> Result<Option<Bytes>> {
        self.read_only()
    }

    fn put(&self, _path: &str, _from: &Path) -> Result<()> {
        self.read_only()
    }

    fn put_new(&self, _path: &str, _content: &[u8]) -> Result<bool> {
        self.read_only()
    }

    fn change(&self, _path: &str, _most: Bytes, _edit: Edit<'_>) -> Result<()> {
        self.read_only()
    }

    fn folders(&self, _path: &str) -> Result<Option<Vec<String>>> {
        Ok(None)
    }

    fn check_writable(&self) -> Result<()> {
        self.read_only()
    }
}
