//! Small fake trees, a store for them, and fakes of the external programs.

#![allow(dead_code, reason = "each test file uses its part")]

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use llama_source::digest::Listing;
use llama_source::{CratePin, GitPin, Origin, Pins, SdistPin, Store, Tools, Tree};
use sha256::Sha256;
use tempfile::TempDir;

/// Files of a tree that is accepted as llama.cpp.
pub const FILES: [(&str, &str); 4] = [
    (
        "CMakeLists.txt",
        "set(LLAMA_VERSION_MAJOR 1)\nset(LLAMA_VERSION_MINOR 2)\nset(LLAMA_VERSION_PATCH 3)\n",
    ),
    (
        "ggml/CMakeLists.txt",
        "set(GGML_VERSION_MAJOR 4)\nset(GGML_VERSION_MINOR 5)\nset(GGML_VERSION_PATCH 6)\n",
    ),
    ("src/llama.cpp", "one\ntwo\nthree\n"),
    ("scripts/run.sh", "#!/bin/sh\n"),
];

/// Folder with everything that a test needs. The folder is removed at the end of the test.
pub struct Bench {
    pub dir: TempDir,
    pub store: Store,
}

impl Bench {
    /// Creates a store whose crate origin is a fake crate, with pins that match [`FILES`] and without patches.
    pub fn new() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let at = |name: &str| dir.path().join(name);
        write_tree(&at("fake-llama/llama.cpp"), &FILES)?;
        let manifest = |name: &str, rest: &str| {
            format!("[package]\nname = \"{name}\"\nversion = \"1.0.0\"\nedition = \"2024\"\n{rest}")
        };
        fs::create_dir_all(at("fake-llama/src"))?;
        fs::write(at("fake-llama/src/lib.rs"), "")?;
        fs::write(at("fake-llama/Cargo.toml"), manifest("fake-llama", ""))?;
        fs::create_dir_all(at("pin/src"))?;
        fs::write(at("pin/src/lib.rs"), "")?;
        fs::write(
            at("pin/Cargo.toml"),
            manifest("pin", "[dependencies]\nfake-llama = { path = \"../fake-llama\" }\n[workspace]\n"),
        )?;
        fs::write(
            at("pin/Cargo.lock"),
            "version = 4\n\n[[package]]\nname = \"fake-llama\"\nversion = \"1.0.0\"\n\n\
             [[package]]\nname = \"pin\"\nversion = \"1.0.0\"\ndependencies = [\n \"fake-llama\",\n]\n",
        )?;
        fs::create_dir(at("patches"))?;

        let digest = Listing::of(&at("fake-llama/llama.cpp"))?.digest();
        let (llama, ggml, license) = ("1.2.3".to_string(), "4.5.6".to_string(), "MIT".to_string());
        let store = Store {
            root: at("root"),
            pins: Pins {
                krate: CratePin {
                    package: "fake-llama".into(),
                    version: "1.0.0".into(),
                    digest: digest.clone(),
                    llama: llama.clone(),
                    ggml: ggml.clone(),
                    license: license.clone(),
                },
                sdist: SdistPin {
                    package: "fake-llama".into(),
                    version: "1.0.0".into(),
                    archive_sha256: zeros(),
                    archive_bytes: 0,
                    commit: "ab".repeat(20),
                    digest: digest.clone(),
                    llama,
                    ggml,
                    license,
                },
                git: GitPin {
                    url: at("repository").display().to_string(),
                    commit: "ab".repeat(20),
                    digest: Some(digest),
                },
            },
            patches: at("patches"),
            crate_manifest: at("pin/Cargo.toml"),
            tools: Tools::default(),
        };
        Ok(Self { dir, store })
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Calls [`Store::ensure`] and returns its result with the progress messages.
    pub fn ensure(&self, origin: &Origin) -> (Result<Tree>, Vec<String>) {
        let mut said = Vec::new();
        let result = self.store.ensure(origin, &mut |line| said.push(line.to_string()));
        (result, said)
    }

    /// Returns the message of the error that [`ensure`](Self::ensure) must return for `origin`.
    pub fn error(&self, origin: &Origin) -> String {
        match self.ensure(origin).0 {
            Ok(tree) => panic!("{origin} gave a tree: {tree:?}"),
            Err(error) => format!("{error:#}"),
        }
    }

    /// Returns the names in the store, except the lock and the downloads.
    pub fn stored(&self) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(self.store.root.join("sources"))
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .filter(|name| name != ".lock" && name != "downloads")
            .collect();
        names.sort();
        names
    }

    /// Creates an executable shell script `name`.
    pub fn script(&self, name: &str, body: &str) -> Result<PathBuf> {
        use std::os::unix::fs::PermissionsExt;
        let path = self.path(name);
        fs::write(&path, format!("#!/bin/sh\n{body}\n"))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        Ok(path)
    }

    pub fn patch(&self, name: &str, text: &str) -> Result<()> {
        Ok(fs::write(self.path("patches").join(name), text)?)
    }
}

pub fn write_tree(root: &Path, files: &[(&str, &str)]) -> Result<()> {
    for (path, text) in files {
        let file = root.join(path);
        fs::create_dir_all(file.parent().context("no parent")?)?;
        fs::write(file, text)?;
    }
    Ok(())
}

pub fn zeros() -> Sha256 {
    Sha256::from_bytes(&[0; 32])
}

/// Returns the paths in `tree`, ascending.
pub fn paths(tree: &Path) -> Result<Vec<String>> {
    let text = Listing::of(tree)?.to_text();
    Ok(text.lines().filter_map(|line| line.split_once("  ")).map(|(_, path)| path.to_string()).collect())
}
