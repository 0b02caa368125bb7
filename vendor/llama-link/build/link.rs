//! Link description `link.json`: the contents of a prefix, and instructions for linking it. `cargo xtask build`
//! writes the file. In a plain `cargo build`, [`default_tree`](crate::default_tree) writes it.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

/// Version of `link.json` that this crate reads.
pub const SCHEMA: u32 = 1;

/// Prefix with llama.cpp's headers and libraries. Paths are relative to the prefix unless absolute.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Version of the format, always [`SCHEMA`].
    pub schema: u32,
    /// Linkage of the libraries.
    pub kind: Linkage,
    /// Folders that contain headers.
    pub include: Vec<PathBuf>,
    /// Folders that contain libraries.
    pub search: Vec<PathBuf>,
    /// Libraries of llama.cpp; each is listed before the libraries that it uses.
    pub libraries: Vec<String>,
    /// Libraries linked as whole archives, because kernels loaded at run time use them. A subset of `libraries`.
    #[serde(default)]
    pub whole: Vec<String>,
    /// System libraries, linked dynamically after `libraries`.
    pub system: Vec<String>,
    /// Run-time search paths for the executable, passed unchanged (`$ORIGIN/…`).
    #[serde(default)]
    pub rpath: Vec<String>,
    /// Additional linker arguments for the executable.
    #[serde(default)]
    pub link_args: Vec<String>,
    /// Script for linking the executable; `None` for the linker's own.
    #[serde(default)]
    pub linker_script: Option<LinkerScript>,
    /// C++ compiler for the shim.
    pub cxx: Option<PathBuf>,
    /// C compiler for the guard.
    pub cc: Option<PathBuf>,
    /// Folder in which bindgen finds libclang.
    #[serde(default)]
    pub libclang_dir: Option<PathBuf>,
    /// Compiler flags for the shim, so that it is compiled like the rest of the C++ code.
    #[serde(default)]
    pub shim_flags: Vec<String>,
    /// Flags that compile the guard for any CPU of the architecture; `None` for the default flags.
    #[serde(default)]
    pub guard_flags: Option<Vec<String>>,
    /// Folders with the headers of the CUDA runtime and cuBLAS; `None` without CUDA.
    #[serde(default)]
    pub cuda: Option<Vec<PathBuf>>,
    /// Instruction sets that the CPU guard checks.
    pub isa_required: Vec<String>,
    /// Advice that the CPU guard prints on a CPU that lacks an instruction set.
    pub build_to_use: String,
}

/// Script for the linker.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkerScript {
    /// Option of the linker whose value is the path of the script.
    pub option: String,
    /// Content of the script.
    pub text: String,
}

impl LinkerScript {
    /// Writes the script to `folder`, and returns the arguments of the linker driver.
    ///
    /// # Errors
    /// If the script cannot be written.
    fn arguments(&self, folder: &Path) -> Result<Vec<String>> {
        let path = folder.join("linker-script.ld");
        std::fs::write(&path, &self.text).with_context(|| format!("cannot write {}", path.display()))?;
        // Unlike `-Wl`, `-Xlinker` does not split paths at commas.
        let words = ["-Xlinker", &self.option, "-Xlinker", &path.display().to_string()];
        Ok(words.map(str::to_string).to_vec())
    }
}

/// Linkage of the libraries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Linkage {
    /// Static archives, which become part of the executable.
    Static,
    /// Shared libraries.
    Dylib,
}

impl Link {
    /// Reads `link.json` in `prefix` and makes its paths absolute.
    ///
    /// # Errors
    /// If the file cannot be read, or has an unsupported version.
    pub fn read(prefix: &Path) -> Result<Self> {
        let path = prefix.join("link.json");
        println!("cargo::rerun-if-changed={}", path.display());
        let text = std::fs::read(&path).with_context(|| {
            format!(
                "cannot read {}\nhint: ANNEAL_LLAMA_PREFIX must be the path of a prefix that cargo xtask built",
                path.display()
            )
        })?;
        let mut link: Link =
            serde_json::from_slice(&text).with_context(|| format!("{} is damaged", path.display()))?;
        ensure!(
            link.schema == SCHEMA,
            "{} has schema {}, but this crate reads schema {SCHEMA}\nhint: build the prefix again",
            path.display(),
            link.schema
        );
        for folder in link.include.iter_mut().chain(&mut link.search) {
            *folder = prefix.join(&*folder);
        }
        Ok(link)
    }

    /// Makes cargo link the prefix's libraries. Writes the linker script to `out`. A dependency cannot pass arguments for the executable, so the
    /// arguments are published as metadata: `DEP_LLAMA_LINK_ARGS`, a JSON array on one line.
    ///
    /// # Errors
    /// If the linker script cannot be written.
    pub fn emit(&self, out: &Path) -> Result<()> {
        for folder in &self.search {
            println!("cargo::rustc-link-search=native={}", folder.display());
        }
        // `-bundle`: the archives may contain LTO bitcode, which must reach the linker unchanged.
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
        let script = self.linker_script.as_ref().map(|script| script.arguments(out)).transpose()?;
        let arguments: Vec<String> =
            rpaths.chain(self.link_args.iter().cloned()).chain(script.into_iter().flatten()).collect();
        println!("cargo::metadata=link_args={}", serde_json::to_string(&arguments)?);
        Ok(())
    }

    /// Makes cargo relink when the library is rebuilt, because cargo does not watch unbundled archives.
    fn watch(&self, library: &str) {
        let names = [format!("lib{library}.a"), format!("lib{library}.so")];
        let files = self.search.iter().flat_map(|folder| names.iter().map(|name| folder.join(name)));
        for file in files.filter(|file| file.is_file()) {
            println!("cargo::rerun-if-changed={}", file.display());
        }
    }
}
