//! LLVM profiles: raw counter files, merged into one and parsed as text.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use base::{Access, Pending};
use build_info::record::Tool;
use plan::variant::Profdata;

use crate::process::{Log, Run};
use crate::workspace::Workspace;

/// Environment variable with the path to which an instrumented program writes its counters.
pub const VARIABLE: &str = "LLVM_PROFILE_FILE";

/// Folder for the raw files of one training.
pub struct Raw {
    folder: PathBuf,
}

impl Raw {
    /// Creates an empty folder at `folder`, so that leftovers of an interrupted training are not merged.
    ///
    /// # Errors
    /// If the folder cannot be emptied or created.
    pub fn empty(folder: PathBuf) -> Result<Self> {
        if folder.exists() {
            std::fs::remove_dir_all(&folder).with_context(|| format!("cannot clear {}", folder.display()))?;
        }
        std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        Ok(Self { folder })
    }

    /// Returns the environment for the program: one counter file per binary (`%m`) and process (`%p`).
    pub fn environment(&self) -> [(&'static str, OsString); 1] {
        [(VARIABLE, self.folder.join("%m_%p.profraw").into_os_string())]
    }

    fn files(&self) -> Result<Vec<PathBuf>> {
        let entries = std::fs::read_dir(&self.folder)
            .with_context(|| format!("cannot list {}", self.folder.display()))?;
        let mut files = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
        files.sort();
        Ok(files)
    }

    /// Merges the files into one and removes them.
    ///
    /// # Errors
    /// If the training wrote no files or recorded no counts.
    pub fn merge(self, tool: &Tool, workspace: &Workspace, log: &Log) -> Result<Profdata> {
        let files = self.files()?;
        if files.is_empty() {
            bail!(
                "the training wrote no profile to {}: the engine was not instrumented, or was killed before it \
                 could write the profile",
                self.folder.display()
            );
        }
        let folder = workspace.pgo_profiles();
        std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        let pending = Pending::beside(&folder.join("merged.profdata"), Access::Usual)
            .with_context(|| format!("cannot create a file in {}", folder.display()))?;
        let merged = Run::new(&tool.path, log)
            .args(["merge", "-o"])
            .args([pending.path()])
            .args(&files)
            .watch(|_, _| {})
            .context("cannot merge the profiles of the training")
            .and_then(|()| crate::fs::digest_file(pending.path()))
            .and_then(|digest| {
                let path = folder.join(format!("{}.profdata", digest.short()));
                pending
                    .commit_as(&path)
                    .with_context(|| format!("cannot move {} into place", path.display()))?;
                Ok(Profdata { path, digest, gcda: None })
            });
        let _ = std::fs::remove_dir_all(&self.folder);
        merged
    }
}

/// Function in a profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Hash of the function's control flow.
    pub hash: u64,
    /// Sum of the function's counters.
    pub count: u64,
}

/// Functions of a profile by name.
pub type Functions = HashMap<String, Function>;

/// Reads the functions of the profile at `path`.
///
/// # Errors
/// If `llvm-profdata` cannot read the file.
pub fn functions(tool: &Tool, path: &Path, log: &Log) -> Result<Functions> {
    let mut reader = ProfileReader::default();
    Run::new(&tool.path, log)
        .quietly()
        .args(["show", "--all-functions", "--counts"])
        .args([path])
        .watch(|_, line| reader.line(line))
        .with_context(|| format!("cannot read {} as a profile", path.display()))?;
    Ok(reader.functions)
}

/// Checks that `path` is a usable profile, before long work begins.
///
/// # Errors
/// If `path` is not a regular file, cannot be read as a profile, or has no counts.
pub fn check(tool: &Tool, path: &Path, log: &Log) -> Result<()> {
    if !path.is_file() {
        bail!("{} is not a file: --profdata needs a file that `llvm-profdata merge` wrote", path.display());
    }
    if functions(tool, path, log)?.values().all(|function| function.count == 0) {
        bail!("{} is an empty profile: none of its functions ran", path.display());
    }
    Ok(())
}

/// Parser of the output of `llvm-profdata show --all-functions --counts`.
#[derive(Default)]
struct ProfileReader {
    functions: Functions,
    name: String,
    hash: u64,
}

impl ProfileReader {
    fn line(&mut self, line: &str) {
        if let Some(name) = line.strip_prefix("  ").and_then(|rest| rest.strip_suffix(':'))
            && !name.starts_with(' ')
        {
            self.name = without_folder(name).to_string();
        } else if let Some(hash) = line.strip_prefix("    Hash: 0x") {
            self.hash = u64::from_str_radix(hash.trim(), 16).unwrap_or(0);
        } else if let Some(counts) = line.strip_prefix("    Block counts: [") {
            let counts = counts.trim_end().trim_end_matches(']').split(',');
            let count = counts
                .filter_map(|count| count.trim().parse::<u64>().ok())
                .fold(0u64, |sum, count| sum.saturating_add(count));
            // One name may have several bodies; the body with the highest count is used.
            let function = Function { hash: self.hash, count };
            let entry =
                self.functions.entry(std::mem::take(&mut self.name)).or_insert_with(|| function.clone());
            if entry.count < count {
                *entry = function;
            }
        }
    }
}

/// Returns the name of a function without the folder of its file. Functions local to a file are called
/// `/path/of/file.cpp;name`.
fn without_folder(name: &str) -> &str {
    match name.split_once(';') {
        Some((path, _)) => &name[path.rfind('/').map_or(0, |at| at + 1)..],
        None => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_read_and_the_summary_is_not() {
        let text = "Counters:\n  /a/b/ops.cpp;ggml_add:\n    Hash: 0x10\n    Counters: 3\n    Block counts: [5, 0, 7]\n  \
                    _ZN3fooEv:\n    Hash: 0xff\n    Counters: 1\n    Block counts: [0]\n  _ZN3fooEv:\n    Hash: 0xfe\n    \
                    Counters: 1\n    Block counts: [3]\nInstrumentation level: IR  entry_first = 0\nFunctions shown: 3\n\
                    Total functions: 3\nMaximum function count: 5\n";
        let mut reader = ProfileReader::default();
        text.lines().for_each(|line| reader.line(line));
        let functions = reader.functions;
        assert_eq!(functions.len(), 2);
        assert_eq!(functions["ops.cpp;ggml_add"], Function { hash: 0x10, count: 12 });
        assert_eq!(functions["_ZN3fooEv"], Function { hash: 0xfe, count: 3 });
    }
}
