//! Default build of llama.cpp, for a plain `cargo build` or `cargo test` and for editors, without a build profile.
//!
//! The default tree uses the same llama.cpp sources as every profile. The tree is built once in the target folder,
//! for this machine's CPU, with static libraries and without OpenMP.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use llama_source::{Origin, Tree};

use crate::link::{Link, Linkage, SCHEMA};
use crate::{features, fingerprint};

/// Compiler flag that selects this machine's CPU.
const NATIVE: &str = if cfg!(target_arch = "x86_64") { "-march=native" } else { "-mcpu=native" };

/// Builds the tree if it does not exist yet, and returns its prefix.
///
/// # Errors
/// If the sources, the compilers or the lock are unavailable.
pub fn build(out: &Path) -> Result<PathBuf> {
    for variable in ["CC", "CXX"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    println!("cargo::rerun-if-changed={}", llama_source::pins_file().display());
    println!("cargo::rerun-if-changed={}", llama_source::patches_dir().display());
    let root = llama_source::root_for_build_script(out)?;
    std::fs::create_dir_all(&root).with_context(|| format!("cannot create {}", root.display()))?;
    // Cargo's own lock covers only one cargo profile, but all profiles share this folder.
    let lock = base::open_or_create(&root.join("default-tree.lock"))
        .context("cannot create the lock of the default tree")?;
    lock.lock().context("cannot lock the default tree")?;

    let tree = llama_source::ensure(&Origin::Crate, &root, &mut |line| println!("{line}"))
        .context("cannot fetch llama.cpp's sources")?;
    let compilers = Compilers::choose()?;
    let definitions = definitions(&tree, &compilers);
    // Each combination of compilers and CPU has a separate tree, because the disk may move to another machine.
    let made_of = fingerprint::of(&definitions, [&compilers.c, &compilers.cxx], NATIVE)?;
    let prefix =
        root.join(format!("default-tree-{}-{}-{made_of}", tree.patched_digest.short(), compilers.name));
    if !prefix.join("link.json").is_file() {
        configure_and_install(&tree, &definitions, &prefix);
        write_link(&compilers, &prefix)?;
    }
    Ok(prefix)
}

/// Compilers that build the tree.
struct Compilers {
    name: String,
    c: PathBuf,
    cxx: PathBuf,
}

impl Compilers {
    /// Chooses `CC` and `CXX` if set, otherwise the newest clang (version 18 or later), otherwise the system's `cc`.
    /// With clang, prefill is 1.4 to 1.56 times as fast as with gcc 12.
    fn choose() -> Result<Self> {
        let chosen = |variable| std::env::var_os(variable).is_some();
        if !chosen("CC") && !chosen("CXX") {
            let newest = (18..40).rev().find(|major| runs(&format!("clang++-{major}")));
            if let Some(major) = newest {
                let (c, cxx) = (format!("clang-{major}").into(), format!("clang++-{major}").into());
                return Ok(Compilers { name: format!("clang-{major}"), c, cxx });
            }
        }
        let c = cc::Build::new()
            .try_get_compiler()
            .context("no C compiler was found\nhint: install clang or gcc")?;
        let cxx = cc::Build::new().cpp(true).try_get_compiler().context("no C++ compiler was found")?;
        let name = c.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Compilers { name, c: c.path().to_path_buf(), cxx: cxx.path().to_path_buf() })
    }
}

fn runs(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

/// Returns the definitions for CMake.
fn definitions(tree: &Tree, compilers: &Compilers) -> Vec<(String, String)> {
    let parts = ["TESTS", "EXAMPLES", "TOOLS", "SERVER", "APP", "COMMON"];
    let fixed = [
        // Without these definitions, the cmake crate would pass the optimisation level and debug flags of the cargo
        // profile, which would make ggml slow.
        ("CMAKE_C_FLAGS", ""),
        ("CMAKE_CXX_FLAGS", ""),
        ("CMAKE_POSITION_INDEPENDENT_CODE", "ON"),
        ("CMAKE_INSTALL_LIBDIR", "lib"),
        ("BUILD_SHARED_LIBS", "OFF"),
        ("GGML_NATIVE", "ON"),
        ("GGML_OPENMP", "OFF"),
        ("GGML_CCACHE", "OFF"),
    ];
    let of_tree = tree.cmake_definitions().map(|(name, value)| (name.to_string(), value));
    let mut definitions = of_tree.to_vec();
    definitions.extend(parts.map(|part| (format!("LLAMA_BUILD_{part}"), "OFF".to_string())));
    definitions.extend(fixed.map(|(name, value)| (name.to_string(), value.to_string())));
    for (name, path) in [("CMAKE_C_COMPILER", &compilers.c), ("CMAKE_CXX_COMPILER", &compilers.cxx)] {
        definitions.push((name.to_string(), path.display().to_string()));
    }
    definitions
}

/// Runs `cmake` to configure and install. The `cmake` crate ends this process with the output if a step fails.
fn configure_and_install(tree: &Tree, definitions: &[(String, String)], prefix: &Path) {
    let mut config = cmake::Config::new(&tree.path);
    let (variable, folder) = tree.cmake_environment();
    config.env(variable, folder);
    for (name, value) in definitions {
        config.define(name, value);
    }
    config.profile("Release").out_dir(prefix);
    if runs("ninja") {
        config.generator("Ninja");
    }
    config.build();
}

/// Writes `link.json` after all other files, because a prefix without `link.json` is rebuilt.
fn write_link(compilers: &Compilers, prefix: &Path) -> Result<()> {
    let flags = vec![NATIVE.to_string()];
    let isa_required = features::of_compiler(std::env::consts::ARCH, compilers.c.as_os_str(), &flags)?;
    let link = Link {
        schema: SCHEMA,
        kind: Linkage::Static,
        include: vec!["include".into()],
        search: vec!["lib".into()],
        libraries: ["llama", "ggml", "ggml-cpu", "ggml-base"].map(str::to_string).to_vec(),
        whole: Vec::new(),
        system: ["stdc++", "m", "pthread"].map(str::to_string).to_vec(),
        rpath: Vec::new(),
        link_args: Vec::new(),
        linker_script: None,
        cxx: Some(compilers.cxx.clone()),
        cc: Some(compilers.c.clone()),
        libclang_dir: None,
        shim_flags: flags,
        guard_flags: None,
        cuda: None,
        isa_required: isa_required.into_iter().map(str::to_string).collect(),
        build_to_use: "a build made on this machine: cargo xtask build-native, or cargo xtask build-portable"
            .to_string(),
    };
    let text = serde_json::to_string_pretty(&link).context("cannot write link.json")?;
    let path = prefix.join("link.json");
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}
