//! Machines for tests: a temporary folder that holds fake tools.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::search::SearchPath;

/// A file system of its own, removed in the end.
pub(crate) struct Machine {
    root: tempfile::TempDir,
}

impl Machine {
    /// An empty machine; the name of its folder holds a space, as a PATH may.
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

    /// A tool at `path` that prints `says`, whatever it is asked.
    pub(crate) fn tool(&self, path: &str, says: &str) -> PathBuf {
        self.script(path, &format!("cat <<'END'\n{says}\nEND"))
    }

    /// Links `path` to `to`.
    pub(crate) fn link(&self, path: &str, to: &str) {
        let path = self.root().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(to, path).unwrap();
    }

    /// Looks at this machine only: `usr/bin` is on its path.
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
