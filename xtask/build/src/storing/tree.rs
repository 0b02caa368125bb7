//! Files of a build that other checkouts can reuse.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use build_info::BuildInfo;
use ship::order::Item;

use crate::scratch::Scratch;
use crate::shipping::foreign;
use crate::workspace::Workspace;
use crate::{audit, fs, shipping};

/// File that each checkout writes itself.
const OWN: &str = "link.json";

/// Files of a build, and a scratch folder with the generated record.
pub struct Tree {
    folder: Scratch,
    /// Files to pack.
    pub items: Vec<Item>,
}

impl Tree {
    /// Gathers the files of the build in `build`, whose record is `info`, with a record that contains neither this
    /// machine's name nor its folders. Returns `None` if another checkout could not use the files.
    ///
    /// # Errors
    /// If a file cannot be read or written.
    pub fn gather(workspace: &Workspace, build: &Path, info: &BuildInfo) -> Result<Option<Self>> {
        let mut tree = Self { folder: Scratch::make(workspace, "publish")?, items: Vec::new() };
        let record = tree.folder.path().join("build_info.json");
        fs::write_atomically(&record, record_for_others(workspace, info)?.as_bytes())?;
        tree.add(record, "build_info.json", false);
        tree.add(build.join("bin/anneal"), "bin/anneal", true);
        for file in ["audit.json", "gate/result.json"] {
            tree.add(build.join(file), file, false);
        }
        for library in audit::libraries(&build.join("lib"))? {
            let name = library.file_name().unwrap_or_default().to_string_lossy().into_owned();
            tree.add(library, &format!("lib/{name}"), false);
        }
        let whole = tree.add_folder(&build.join("prefix"), "prefix")?;
        Ok(whole.then_some(tree))
    }

    fn add(&mut self, from: PathBuf, to: &str, executable: bool) {
        self.items.push(Item { from, to: to.to_string(), executable });
    }

    /// Adds all files below `folder`. Returns false if `folder` contains anything other than files and folders. The
    /// prefix of a build with shared libraries contains links, which Anneal's archives do not support.
    fn add_folder(&mut self, folder: &Path, name: &str) -> Result<bool> {
        let entries =
            std::fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
        for entry in entries {
            let entry = entry?;
            let (kind, own) = (entry.file_type()?, entry.file_name().to_string_lossy().into_owned());
            let to = format!("{name}/{own}");
            if kind.is_dir() {
                if !self.add_folder(&entry.path(), &to)? {
                    return Ok(false);
                }
            } else if !kind.is_file() {
                return Ok(false);
            } else if own != OWN {
                self.add(entry.path(), &to, false);
            }
        }
        Ok(true)
    }
}

/// Returns the record for a store: the build and its test results, but nothing about the machine that made it.
fn record_for_others(workspace: &Workspace, info: &BuildInfo) -> Result<String> {
    let mut other = info.clone().released(&info.date);
    // Results of the gate and the durations of stages describe the build, not the machine.
    (other.gate, other.stages) = (info.gate.clone(), info.stages.clone());
    shipping::record(&other, &foreign(workspace)?)
}
