//! Components of a build, for its bill of materials and its licences.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use build_info::BuildInfo;
use build_info::switches::Allocator;
use serde::Deserialize;
use ship::order::{Licences, Part, Parts};

use super::needs::Needs;
use crate::stages;
use crate::workspace::Workspace;

/// Returns the components of the build `info`, whose program needs `needs`.
///
/// # Errors
/// If the sources or licence texts cannot be found.
pub fn parts(workspace: &Workspace, info: &BuildInfo, needs: &Needs) -> Result<Parts> {
    let llama = sources(workspace, info)?;
    let mut licences =
        vec![Licences { folder: llama, name: format!("llama.cpp-{}", info.llama_version), deep: true }];
    // Some Rust installations come without the documents.
    if let Some(folder) = rust_documents().filter(|folder| folder.join("licenses").is_dir()) {
        licences.push(Licences { folder, name: format!("rust-std-{}", rustc_version(info)), deep: false });
    }
    let allocator = info.switches.as_ref().map_or(Allocator::System, |switches| switches.allocator);
    let rust = stages::rust(workspace, allocator);
    Ok(Parts { rust: Some(rust), others: others(info, needs), licences })
}

fn others(info: &BuildInfo, needs: &Needs) -> Vec<Part> {
    let source = &info.source;
    let purl = match source.origin.as_str() {
        "git" => format!("pkg:github/ggml-org/llama.cpp@{}", source.version),
        _ => format!("pkg:generic/llama.cpp@{}", info.llama_version),
    };
    let mut parts = vec![
        Part {
            name: "llama.cpp".to_string(),
            version: info.llama_version.clone(),
            license: "MIT".to_string(),
            purl,
            description: format!("runs the models; patched, and compiled with {}", info.compiler),
            patches: source.patches.iter().map(|patch| (patch.name.clone(), patch.sha256.clone())).collect(),
            properties: vec![
                ("anneal:source:origin".to_string(), source.origin.clone()),
                ("anneal:source:version".to_string(), source.version.clone()),
                ("anneal:source:tree-sha256".to_string(), source.digest.to_string()),
            ],
        },
        plain(
            "rust-std",
            rustc_version(info),
            "MIT OR Apache-2.0",
            "Rust's standard library, part of the program",
        ),
        cxx_runtime(info, needs),
    ];
    if let Some(blas) = &info.blas {
        parts.push(plain(&blas.vendor, &blas.version, "BSD-3-Clause", "multiplies matrices"));
    }
    parts
}

/// Returns the C++ runtime, which is part of the program or of the system.
fn cxx_runtime(info: &BuildInfo, needs: &Needs) -> Part {
    let version = info.toolchain.get("cxx").map_or("unknown", |tool| tool.version.as_str());
    let libstdcxx = "GPL-3.0-or-later WITH GCC-exception-3.1";
    if needs.libraries.contains("libstdc++.so.6") {
        let mut part =
            plain("libstdc++", "6", libstdcxx, "C++ standard library of the system, not in the archive");
        part.properties.push(("anneal:linked".to_string(), "dynamically".to_string()));
        return part;
    }
    // zig ships LLVM's runtime.
    if info.compiler.contains("zig") {
        return plain(
            "libc++",
            version,
            "Apache-2.0 WITH LLVM-exception",
            "C++ standard library, part of the program",
        );
    }
    plain("libstdc++", version, libstdcxx, "C++ standard library, part of the program")
}

fn plain(name: &str, version: &str, license: &str, description: &str) -> Part {
    Part {
        name: name.to_string(),
        version: version.to_string(),
        license: license.to_string(),
        purl: format!("pkg:generic/{}@{version}", name.replace('+', "%2B")),
        description: description.to_string(),
        patches: Vec::new(),
        properties: Vec::new(),
    }
}

fn rustc_version(info: &BuildInfo) -> &str {
    info.toolchain.get("rustc").map_or("unknown", |tool| tool.version.as_str())
}

/// Returns the folder with the documents of the installed Rust.
fn rust_documents() -> Option<PathBuf> {
    let output = std::process::Command::new("rustc").args(["--print", "sysroot"]).output().ok()?;
    let folder = String::from_utf8(output.stdout).ok()?;
    Some(Path::new(folder.trim()).join("share/doc/rust"))
}

/// Returns the folder of the llama.cpp sources that the build `info` was made from.
///
/// # Errors
/// If the sources no longer exist.
fn sources(workspace: &Workspace, info: &BuildInfo) -> Result<PathBuf> {
    let all = workspace.anneal().join("sources");
    if let Some(tree) = sources_in(&all, &info.source.digest)? {
        return Ok(tree);
    }
    bail!(
        "cannot copy the licences of {} ({} {}): its sources are not in {}\nhint: `cargo xtask vendor --origin \
         {}` downloads them",
        info.profile,
        info.source.origin,
        info.source.version,
        all.display(),
        info.source.origin
    )
}

/// Returns the folder in `all` of the llama.cpp sources with the digest `digest`, or `None` if `clean` removed the
/// folder.
fn sources_in(all: &Path, digest: &build_info::Sha256) -> Result<Option<PathBuf>> {
    #[derive(Deserialize)]
    struct Fetched {
        digest: build_info::Sha256,
    }
    let entries = match std::fs::read_dir(all) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        entries => entries.with_context(|| format!("cannot list {}", all.display()))?,
    };
    for entry in entries {
        let folder = entry?.path();
        let told = std::fs::read(folder.join("source.json")).ok();
        let fetched = told.and_then(|text| serde_json::from_slice::<Fetched>(&text).ok());
        let tree = folder.join("llama.cpp");
        if fetched.is_some_and(|fetched| fetched.digest == *digest) && tree.is_dir() {
            return Ok(Some(tree));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_found_by_their_digest_or_missing() {
        let folder = tempfile::tempdir().unwrap();
        let digest = build_info::Sha256::of(b"sources");
        let all = folder.path().join("sources");
        // If the folder is missing, the caller explains how to download the sources.
        assert_eq!(sources_in(&all, &digest).unwrap(), None);
        let tree = all.join("b1/llama.cpp");
        std::fs::create_dir_all(&tree).unwrap();
        std::fs::write(all.join("b1/source.json"), format!("{{\"digest\":\"{digest}\"}}")).unwrap();
        assert_eq!(sources_in(&all, &digest).unwrap(), Some(tree));
        assert_eq!(sources_in(&all, &build_info::Sha256::of(b"others")).unwrap(), None);
    }
}
