//! Fake machines for tests: temporary folders with fake tools.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::search::SearchPath;

/// Temporary file system. Dropping the value removes it.
pub(crate) struct Machine {
    root: tempfile::TempDir,
}

impl Machine {
    /// Creates an empty machine. The name of its folder contains a space, as a folder on PATH may.
    pub(crate) fn new() -> Self {
        Self { root: tempfile::Builder::new().prefix("a machine ").tempdir().unwrap() }
    }

    pub(crate) fn root(&self) -> &Path {
        self.root.path()
    }

    /// Writes `text` to the file at `path`.
    pub(crate) fn file(&self, path: &str, text: &str) -> PathBuf {
        let path = self.root().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    /// Writes a shell script.
    pub(crate) fn script(&self, path: &str, text: &str) -> PathBuf {
        let path = self.file(path, &format!("#!/bin/sh\n{text}\n"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    /// Creates a tool at `path` that prints `says` for any arguments.
    pub(crate) fn tool(&self, path: &str, says: &str) -> PathBuf {
        self.script(path, &format!("cat <<'END'\n{says}\nEND"))
    }

    /// Links `path` to `to`.
    pub(crate) fn link(&self, path: &str, to: &str) {
        let path = self.root().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(to, path).unwrap();
    }

    /// Returns a search path for this machine only, with `usr/bin` on its path.
    pub(crate) fn search(&self) -> SearchPath {
        SearchPath {
            dirs: vec![self.root().join("usr/bin")],
            root: self.root().to_path_buf(),
            home: Some(self.root().join("home")),
            rustup_home: Some(self.root().join("home/.rustup")),
            own_tools: Some(self.root().join("target/tools")),
            patience: Duration::from_secs(3),
            ..SearchPath::default()
        }
    }
}
