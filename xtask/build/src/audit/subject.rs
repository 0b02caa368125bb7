//! Subject of `cargo xtask audit PATH`: a file, a build folder or an unpacked archive.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use base::exit;
use build_info::BuildInfo;
use build_info::audit::Rule;

/// Files that belong together, and the record of their build.
#[derive(Debug)]
pub struct AuditSubject {
    /// Paths of the program and of its libraries, the program first.
    pub files: Vec<PathBuf>,
    /// Record of the build; `None` if the build has no readable record.
    pub info: Option<BuildInfo>,
}

impl AuditSubject {
    /// Finds the files and the record at `path`.
    ///
    /// # Errors
    /// A usage error if there is nothing to audit at `path`.
    pub fn find(path: &Path) -> Result<Self> {
        if path.is_dir() {
            return Self::folder(path);
        }
        if !path.exists() {
            return Err(exit::usage(format!(
                "cannot find {}\nhint: give the path of a program, a shared library or a build folder",
                path.display()
            )));
        }
        // The record is in the build folder: two levels above bin/anneal, three levels above prefix/lib/libllama.so.
        let absolute = std::path::absolute(path)?;
        let record = absolute
            .ancestors()
            .skip(2)
            .take(2)
            .map(|folder| folder.join("build_info.json"))
            .find(|record| record.is_file());
        Ok(Self { files: vec![path.to_path_buf()], info: record.and_then(|path| read(&path)) })
    }

    fn folder(path: &Path) -> Result<Self> {
        let anneal = path.join("bin/anneal");
        if !anneal.is_file() {
            return Err(exit::usage(format!(
                "{} contains no bin/anneal\nhint: give the path of a build folder, an unpacked archive, a program \
                 or a shared library",
                path.display()
            )));
        }
        let mut files = vec![anneal];
        for folder in ["bin", "lib", "prefix/lib"] {
            files.extend(libraries(&path.join(folder))?);
        }
        Ok(Self { files, info: read(&path.join("build_info.json")) })
    }

    /// Returns the rule that applies to the build.
    pub fn rule(&self) -> Rule {
        let Some(info) = &self.info else { return Rule::Report };
        if let Some(audit) = info.audit.as_ref().filter(|audit| audit.not_done.is_none()) {
            return audit.rule;
        }
        // If the record has no audit, the CMake definitions determine the rule. Upstream's own flags apply only to
        // ggml-cpu, so no CMake definition contains them.
        let march = |march: &str| {
            info.cmake_flags.iter().any(|definition| {
                definition
                    .split_once('=')
                    .is_some_and(|(_, value)| value.split(' ').any(|word| word == march))
            })
        };
        if !info.cpu_variants.is_empty() {
            Rule::Universal
        } else if march("-march=x86-64-v3") || march("-march=x86_64_v3") {
            Rule::Portable
        } else if march("-march=native") {
            Rule::Native
        } else {
            Rule::Report
        }
    }

    /// Returns the instruction sets of the machine that made the build, or `None` if there is no record.
    pub fn offered(&self) -> Option<BTreeSet<String>> {
        Some(self.info.as_ref()?.host.cpu.features.clone())
    }
}

/// Returns the record at `path`, or `None` if it cannot be read: a program can be audited without its record.
fn read(path: &Path) -> Option<BuildInfo> {
    BuildInfo::read(path).ok()
}

/// Returns the shared libraries in `folder`, each once; empty if the folder does not exist.
pub fn libraries(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).with_context(|| format!("cannot list {}", folder.display())),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.with_context(|| format!("cannot list {}", folder.display()))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        // Versioned names are links to the same file.
        if (name.ends_with(".so") || name.contains(".so.")) && entry.file_type()?.is_file() {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}
