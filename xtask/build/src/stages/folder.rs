//! Build folders: one per plan, locked while it is worked on, current by one rename.

use std::fs::{File, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use base::exit;
use build_info::BuildInfo;
use build_info::record::StageTime;
use plan::Plan;
use serde::{Deserialize, Serialize};

use crate::ui::Ui;
use crate::workspace::Workspace;
use crate::{fs, process};

/// The file in the prefix that says what is to be linked.
pub const LINK: &str = "link.json";

/// One build folder.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
}

/// What is remembered of a stage that has passed.
#[derive(Debug, Serialize, Deserialize)]
pub struct Stamp {
    /// What it was run on, beyond the plan that names the folder.
    pub input: String,
    /// How long it took.
    pub seconds: f64,
    /// CPU time of all that it ran, in seconds, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_seconds: Option<f64>,
}

impl Stamp {
    /// How long the stage `name` took, of which this is remembered.
    pub fn time(&self, name: &str) -> StageTime {
        StageTime { name: name.to_string(), seconds: self.seconds, cpu_seconds: self.cpu_seconds }
    }
}

impl Folder {
    /// Opens `path`, and makes it when it is not there.
    pub fn create(path: &Path) -> Result<Self> {
        for part in ["", "stages"] {
            let folder = path.join(part);
            std::fs::create_dir_all(&folder)
                .with_context(|| format!("cannot make the build folder {}", folder.display()))?;
        }
        Ok(Self { path: path.to_path_buf() })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// CMake's build tree.
    pub fn cmake(&self) -> PathBuf {
        self.path.join("cmake")
    }

    /// The compile database.
    pub fn compile_database(&self) -> PathBuf {
        self.cmake().join("compile_commands.json")
    }

    /// Headers, libraries and `link.json`.
    pub fn prefix(&self) -> PathBuf {
        self.path.join("prefix")
    }

    /// What llama-link is to link.
    pub fn link_json(&self) -> PathBuf {
        self.prefix().join(LINK)
    }

    /// All output of all commands.
    pub fn log(&self) -> PathBuf {
        self.path.join("build.log")
    }

    /// The record.
    pub fn build_info(&self) -> PathBuf {
        self.path.join("build_info.json")
    }

    /// The engine.
    pub fn anneal(&self) -> PathBuf {
        self.path.join("bin/anneal")
    }

    /// Kernels that the engine loads.
    pub fn libraries(&self) -> PathBuf {
        self.path.join("lib")
    }

    /// The engine until it has passed the smoke test.
    pub fn candidate(&self) -> PathBuf {
        self.path.join("bin.new/anneal")
    }

    /// The engine that was built last, in its place or not yet.
    pub fn newest_engine(&self) -> Option<PathBuf> {
        [self.candidate(), self.anneal()].into_iter().find(|path| path.is_file())
    }

    /// Forgets that `stage` has passed.
    pub fn forget(&self, stage: &str) {
        // Not there is as good.
        let _ = std::fs::remove_file(self.stamp_path(stage));
    }

    /// A folder for files of the smoke test.
    pub fn smoke(&self) -> PathBuf {
        self.path.join("smoke")
    }

    fn stamp_path(&self, stage: &str) -> PathBuf {
        self.path.join("stages").join(format!("{}.json", stage.replace(' ', "-")))
    }

    /// What is remembered of `stage`, if it has passed. A damaged stamp is none.
    pub fn stamp(&self, stage: &str) -> Option<Stamp> {
        serde_json::from_slice(&std::fs::read(self.stamp_path(stage)).ok()?).ok()
    }

    /// Remembers that `stage` has passed.
    pub fn write_stamp(&self, stage: &str, stamp: &Stamp) -> Result<()> {
        fs::write_atomically(&self.stamp_path(stage), &serde_json::to_vec(stamp)?)
    }

    fn value_path(&self, name: &str) -> PathBuf {
        self.path.join("stages").join(format!("{name}.value.json"))
    }

    /// What the stage `name` gave. A damaged value is none.
    pub fn value<T: serde::de::DeserializeOwned>(&self, name: &str) -> Option<T> {
        serde_json::from_slice(&std::fs::read(self.value_path(name)).ok()?).ok()
    }

    /// Keeps what the stage `name` gave.
    pub fn write_value(&self, name: &str, value: &impl Serialize) -> Result<()> {
        fs::write_atomically(&self.value_path(name), &serde_json::to_vec_pretty(value)?)
    }

    /// Keeps the plan beside what it made.
    pub fn write_plan(&self, plan: &Plan) -> Result<()> {
        fs::write_atomically(&self.path.join("plan.json"), &serde_json::to_vec_pretty(plan)?)
    }

    /// Replaces the record.
    pub fn write_record(&self, info: &BuildInfo) -> Result<()> {
        fs::write_atomically(&self.build_info(), &serde_json::to_vec_pretty(info)?)
    }

    /// Puts the candidate into its place and writes the record.
    pub fn finish(&self, info: &BuildInfo) -> Result<()> {
        let (candidate, anneal) = (self.candidate(), self.anneal());
        if candidate.is_file() {
            let bin = anneal.parent().unwrap_or(&self.path);
            std::fs::create_dir_all(bin)
                .and_then(|()| std::fs::rename(&candidate, &anneal))
                .with_context(|| format!("cannot put {} into place", anneal.display()))?;
            let _ = std::fs::remove_dir(self.path.join("bin.new"));
        }
        self.write_record(info)
    }

    /// Switches `link` to this folder: whoever follows it finds the old build or the new one.
    pub fn make_current(&self, link: &Path) -> Result<()> {
        let name = self.path.file_name().context("the build folder has no name")?;
        fs::switch_link(link, Path::new(name))
    }
}

/// Held by the one process that builds in a checkout.
#[derive(Debug)]
pub struct CheckoutLock {
    _file: File,
}

impl CheckoutLock {
    fn path(workspace: &Workspace) -> PathBuf {
        workspace.anneal().join("lock")
    }

    /// Whether a process holds the lock now. What cannot be looked at is not held.
    pub fn is_held(workspace: &Workspace) -> bool {
        let Ok(file) = File::open(Self::path(workspace)) else { return false };
        matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
    }

    /// Takes the lock.
    ///
    /// # Errors
    /// "Try again" when another process holds it.
    pub fn take(workspace: &Workspace) -> Result<Self> {
        let anneal = workspace.anneal();
        std::fs::create_dir_all(&anneal).with_context(|| format!("cannot make {}", anneal.display()))?;
        let path = Self::path(workspace);
        let mut file = base::open_or_create(&path)
            .with_context(|| format!("cannot open the lock {}", path.display()))?;
        let mut locked = file.try_lock();
        // `is_held` holds it for a moment, and is no build.
        for _ in 0..3 {
            if !matches!(locked, Err(TryLockError::WouldBlock)) {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
            locked = file.try_lock();
        }
        match locked {
            Ok(()) => {
                // Only for the message of another process; the lock is the kernel's.
                let _ = file.set_len(0).and_then(|()| write!(file, "{}", std::process::id()));
                Ok(Self { _file: file })
            }
            Err(TryLockError::WouldBlock) => {
                let holder = std::fs::read_to_string(&path).unwrap_or_default();
                Err(exit::try_again(format!(
                    "another build is running in this checkout (process {}): wait until it is finished, or stop \
                     it with `kill {0}`, and run the same again",
                    holder.trim()
                )))
            }
            Err(TryLockError::Error(error)) => {
                Err(error).with_context(|| format!("cannot lock {}", path.display()))
            }
        }
    }

    /// The same for what is left to be done after long work: another build's end is waited for.
    pub fn wait(workspace: &Workspace, ui: &Ui) -> Result<Self> {
        let mut told = false;
        loop {
            match Self::take(workspace) {
                Err(error) if exit::code_of(&error) == exit::TRY_AGAIN => {
                    process::check_interrupted()?;
                    if !told {
                        ui.say("waiting for another build in this checkout to finish");
                        told = true;
                    }
                    std::thread::sleep(Duration::from_millis(200));
                }
                other => return other,
            }
        }
    }
}

/// The build folders of a checkout.
pub struct Builds<'a> {
    workspace: &'a Workspace,
}

/// One build folder, as found.
pub struct BuildFolder {
    /// The folder.
    pub path: PathBuf,
    /// The profile whose link points at it.
    pub current_of: Option<String>,
}

impl<'a> Builds<'a> {
    /// The build folders of `workspace`.
    pub fn of(workspace: &'a Workspace) -> Self {
        Self { workspace }
    }

    /// All of them, by name.
    pub fn all(&self) -> Result<Vec<BuildFolder>> {
        let anneal = self.workspace.anneal();
        let entries = match std::fs::read_dir(&anneal) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => {
                return Err(error).with_context(|| format!("cannot list {}", anneal.display()));
            }
        };
        let mut folders = Vec::new();
        let mut links = Vec::new();
        for entry in entries {
            let path = entry?.path();
            if path.is_symlink() {
                links.push(path);
            } else if path.join("stages").is_dir() {
                folders.push(path);
            }
        }
        folders.sort();
        let current_of = |folder: &Path| {
            let link = links.iter().find(|link| {
                std::fs::read_link(link).is_ok_and(|target| Some(target.as_os_str()) == folder.file_name())
            })?;
            Some(link.file_name()?.to_string_lossy().into_owned())
        };
        Ok(folders.into_iter().map(|path| BuildFolder { current_of: current_of(&path), path }).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ui::Global;

    #[test]
    fn who_waits_gets_the_lock_when_it_is_free_and_not_before() {
        let temp = tempfile::tempdir().unwrap();
        let workspace = Workspace::at(temp.path());
        let held = CheckoutLock::take(&workspace).unwrap();
        assert_eq!(
            CheckoutLock::take(&workspace).err().map(|error| exit::code_of(&error)),
            Some(exit::TRY_AGAIN)
        );
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                CheckoutLock::wait(&workspace, &Ui::new(&Global { quiet: true, ..Global::default() })).is_ok()
            });
            std::thread::sleep(Duration::from_millis(50));
            assert!(!waiting.is_finished());
            drop(held);
            assert!(waiting.join().unwrap());
        });
    }
}
