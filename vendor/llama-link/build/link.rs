//! `link.json`: what a prefix holds and how to link it. Written by `cargo xtask build`, or by
//! [`default_tree`](crate::default_tree) for a plain `cargo build`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

/// The version of `link.json` this crate reads.
pub const SCHEMA: u32 = 1;

/// A prefix with llama.cpp's headers and libraries. Paths are relative to the prefix unless absolute.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Always [`SCHEMA`].
    pub schema: u32,
    /// How the libraries are linked.
    pub kind: Linkage,
    /// Folders of headers.
    pub include: Vec<PathBuf>,
    /// Folders of libraries.
    pub search: Vec<PathBuf>,
    /// llama.cpp's libraries, users before what they use.
    pub libraries: Vec<String>,
    /// Those of `libraries` of which all is linked, for kernels that are loaded and use it.
    #[serde(default)]
    pub whole: Vec<String>,
    /// Libraries of the system, linked dynamically after them.
    pub system: Vec<String>,
    /// Run-time search paths for the executable, as they are (`$ORIGIN/…`).
    #[serde(default)]
    pub rpath: Vec<String>,
    /// Further linker arguments for the executable.
    #[serde(default)]
    pub link_args: Vec<String>,
    /// C++ compiler of the shim.
    pub cxx: Option<PathBuf>,
    /// C compiler of the guard.
    pub cc: Option<PathBuf>,
    /// Where bindgen finds libclang.
    #[serde(default)]
    pub libclang_dir: Option<PathBuf>,
    /// Flags of the shim, so that it is compiled like the rest of the C++ code.
    #[serde(default)]
    pub shim_flags: Vec<String>,
    /// Flags by which the guard is compiled for any CPU of the architecture, where the compiler has its own spelling.
    #[serde(default)]
    pub guard_flags: Option<Vec<String>>,
    /// Folders of the headers of CUDA's runtime and of cuBLAS, where llama.cpp computes on NVIDIA's GPUs.
    #[serde(default)]
    pub cuda: Option<Vec<PathBuf>>,
    /// Instruction sets that the CPU guard asks for.
    pub isa_required: Vec<String>,
    /// What to run instead where one is missing.
    pub build_to_use: String,
}

/// Whether the libraries become part of the executable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Linkage {
    /// Archives.
    Static,
    /// Shared libraries.
    Dylib,
}

impl Link {
    /// Reads `link.json` in `prefix` and makes its paths absolute.
    pub fn read(prefix: &Path) -> Result<Self> {
        let path = prefix.join("link.json");
        println!("cargo::rerun-if-changed={}", path.display());
        let text = std::fs::read(&path).with_context(|| {
            format!(
                "cannot read {}: ANNEAL_LLAMA_PREFIX must name a prefix that cargo xtask built",
                path.display()
            )
        })?;
        let mut link: Link =
            serde_json::from_slice(&text).with_context(|| format!("{} is damaged", path.display()))?;
        ensure!(
            link.schema == SCHEMA,
            "{} has schema {}, this crate reads {SCHEMA}: build the prefix again",
            path.display(),
            link.schema
        );
        for folder in link.include.iter_mut().chain(&mut link.search) {
            *folder = prefix.join(&*folder);
        }
        Ok(link)
    }

    /// Tells cargo to link the prefix's libraries. The executable's own arguments travel as metadata,
    /// since a dependency cannot pass them: `DEP_LLAMA_LINK_ARGS`, one in a line of a JSON array.
    pub fn emit(&self) -> Result<()> {
        for folder in &self.search {
            println!("cargo::rustc-link-search=native={}", folder.display());
        }
        // `-bundle`: the archives may hold LTO bitcode, which must reach the linker as it is.
        for library in &self.libraries {
            let kind = match self.kind {
                Linkage::Static if self.whole.contains(library) => "static:+whole-archive,-bundle",
                Linkage::Static => "static:-bundle",
                Linkage::Dylib => "dylib",
            };
            println!("cargo::rustc-link-lib={kind}={library}");
            self.watch(library);
        }
        for library in &self.system {
            println!("cargo::rustc-link-lib=dylib={library}");
        }
        let rpaths = self.rpath.iter().map(|path| format!("-Wl,-rpath,{path}"));
        let arguments: Vec<String> = rpaths.chain(self.link_args.iter().cloned()).collect();
        println!("cargo::metadata=link_args={}", serde_json::to_string(&arguments)?);
        Ok(())
    }

    /// Links again when the library is built again; cargo does not watch unbundled archives.
    fn watch(&self, library: &str) {
        let names = [format!("lib{library}.a"), format!("lib{library}.so")];
        let files = self.search.iter().flat_map(|folder| names.iter().map(|name| folder.join(name)));
        for file in files.filter(|file| file.is_file()) {
            println!("cargo::rerun-if-changed={}", file.display());
        }
    }
}
