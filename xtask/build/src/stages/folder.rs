//! Build folders: one per plan, locked during a build, and made current by a single rename.

use std::fs::{File, TryLockError};
use std::io::{ErrorKind, Write};
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

/// File in the prefix that lists the libraries to link.
pub const LINK: &str = "link.json";

/// Build folder of one plan.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
}

/// Record of a stage that has passed.
#[derive(Debug, Serialize, Deserialize)]
pub struct Stamp {
    /// Inputs of the stage other than the plan, whose hash is part of the folder's name.
    pub input: String,
    /// Duration in seconds.
    pub seconds: f64,
    /// CPU time of all processes of the stage, in seconds; `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_seconds: Option<f64>,
}

impl Stamp {
    /// Returns the duration of this stamp's stage, which is called `name`.
    pub fn time(&self, name: &str) -> StageTime {
        StageTime { name: name.to_string(), seconds: self.seconds, cpu_seconds: self.cpu_seconds }
    }
}

impl Folder {
    /// Opens the folder `path`, creating it if necessary.
    ///
    /// # Errors
    /// If the folder cannot be created.
    pub fn create(path: &Path) -> Result<Self> {
        for part in ["", "stages"] {
            let folder = path.join(part);
            std::fs::create_dir_all(&folder)
                .with_context(|| format!("cannot create the build folder {}", folder.display()))?;
        }
        Ok(Self { path: path.to_path_buf() })
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of CMake's build tree.
    pub fn cmake(&self) -> PathBuf {
        self.path.join("cmake")
    }

    /// Returns the path of the compile database.
    pub fn compile_database(&self) -> PathBuf {
        self.cmake().join("compile_commands.json")
    }

    /// Returns the path of the prefix with headers, libraries and `link.json`.
    pub fn prefix(&self) -> PathBuf {
        self.path.join("prefix")
    }

    /// Returns the path of `link.json`, which lists the libraries for llama-link.
    pub fn link_json(&self) -> PathBuf {
        self.prefix().join(LINK)
    }

    /// Returns the path of the log with the output of all commands.
    pub fn log(&self) -> PathBuf {
        self.path.join("build.log")
    }

    /// Returns the path of the record.
    pub fn build_info(&self) -> PathBuf {
        self.path.join("build_info.json")
    }

    /// Returns the path of the engine.
    pub fn anneal(&self) -> PathBuf {
        self.path.join("bin/anneal")
    }

    /// Returns the folder of the kernel libraries that the engine loads.
    pub fn libraries(&self) -> PathBuf {
        self.path.join("lib")
    }

    /// Returns the path of the engine before it has passed the smoke test.
    pub fn candidate(&self) -> PathBuf {
        self.path.join("bin.new/anneal")
    }

    /// Returns the path of the engine that was built last, which may still be a candidate.
    pub fn newest_engine(&self) -> Option<PathBuf> {
        [self.candidate(), self.anneal()].into_iter().find(|path| path.is_file())
    }

    /// Returns the path of the engine that was built last.
    ///
    /// # Errors
    /// If there is no engine.
    pub fn engine(&self) -> Result<PathBuf> {
        self.newest_engine().with_context(|| {
            let folder = self.path.display();
            format!(
                "{folder} contains no program `anneal`\nhint: run the same command again, which builds it"
            )
        })
    }

    /// Removes the stamp of `stage`, so that the stage runs again.
    pub fn forget(&self, stage: &str) {
        // The stamp may not exist.
        let _ = std::fs::remove_file(self.stamp_path(stage));
    }

    /// Returns the folder for the files of the smoke test.
    pub fn smoke(&self) -> PathBuf {
        self.path.join("smoke")
    }

    fn stamp_path(&self, stage: &str) -> PathBuf {
        self.path.join("stages").join(format!("{}.json", stage.replace(' ', "-")))
    }

    /// Returns the stamp of `stage` if it has passed. A damaged stamp is treated as missing.
    pub fn stamp(&self, stage: &str) -> Option<Stamp> {
        serde_json::from_slice(&std::fs::read(self.stamp_path(stage)).ok()?).ok()
    }

    /// Stores the stamp of `stage`, which has passed.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write_stamp(&self, stage: &str, stamp: &Stamp) -> Result<()> {
        fs::write_atomically(&self.stamp_path(stage), &serde_json::to_vec(stamp)?)
    }

    fn value_path(&self, name: &str) -> PathBuf {
        self.path.join("stages").join(format!("{name}.value.json"))
    }

    /// Returns the stored result of the stage `name`. A damaged result is treated as missing.
    pub fn value<T: serde::de::DeserializeOwned>(&self, name: &str) -> Option<T> {
        serde_json::from_slice(&std::fs::read(self.value_path(name)).ok()?).ok()
    }

    /// Stores the result of the stage `name`.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write_value(&self, name: &str, value: &impl Serialize) -> Result<()> {
        fs::write_atomically(&self.value_path(name), &serde_json::to_vec_pretty(value)?)
    }

    /// Stores the plan in the folder.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write_plan(&self, plan: &Plan) -> Result<()> {
        fs::write_atomically(&self.path.join("plan.json"), &serde_json::to_vec_pretty(plan)?)
    }

    /// Replaces the record.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write_record(&self, info: &BuildInfo) -> Result<()> {
        fs::write_atomically(&self.build_info(), &serde_json::to_vec_pretty(info)?)
    }

    /// Moves the candidate to its final path and writes the record.
    ///
    /// # Errors
    /// If a file cannot be moved or written.
    pub fn finish(&self, info: &BuildInfo) -> Result<()> {
        let (candidate, anneal) = (self.candidate(), self.anneal());
        if candidate.is_file() {
            let bin = anneal.parent().unwrap_or(&self.path);
            std::fs::create_dir_all(bin)
                .and_then(|()| std::fs::rename(&candidate, &anneal))
                .with_context(|| format!("cannot move {} into place", anneal.display()))?;
            let _ = std::fs::remove_dir(self.path.join("bin.new"));
        }
        self.write_record(info)
    }

    /// Points `link` at this folder. Users of the link see either the old build or the new one.
    ///
    /// # Errors
    /// If the link cannot be changed.
    pub fn make_current(&self, link: &Path) -> Result<()> {
        let name = self.path.file_name().context("the build folder has no name")?;
        fs::switch_link(link, Path::new(name))
    }
}

/// Lock that one process holds while it builds in a checkout.
#[derive(Debug)]
pub struct CheckoutLock {
    _file: File,
}

impl CheckoutLock {
    fn path(workspace: &Workspace) -> PathBuf {
        workspace.anneal().join("lock")
    }

    /// True if a process holds the lock; false if the lock file cannot be opened.
    pub fn is_held(workspace: &Workspace) -> bool {
        let Ok(file) = File::open(Self::path(workspace)) else { return false };
        matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
    }

    /// Takes the lock.
    ///
    /// # Errors
    /// If another process holds the lock; the exit code then means "try again".
    pub fn take(workspace: &Workspace) -> Result<Self> {
        let anneal = workspace.anneal();
        std::fs::create_dir_all(&anneal)
            .map_err(|error| unwritable(format!("cannot create {}", anneal.display()), error))?;
        let path = Self::path(workspace);
        let mut file = base::open_or_create(&path)
            .map_err(|error| unwritable(format!("cannot open the lock {}", path.display()), error))?;
        let mut locked = file.try_lock();
        // `is_held` takes the lock for a moment, although no build is running.
        for _ in 0..3 {
            if !matches!(locked, Err(TryLockError::WouldBlock)) {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
            locked = file.try_lock();
        }
        match locked {
            Ok(()) => {
                // The process number only appears in another process's message; the kernel holds the lock itself.
                let _ = file.set_len(0).and_then(|()| write!(file, "{}", std::process::id()));
                Ok(Self { _file: file })
            }
            Err(TryLockError::WouldBlock) => {
                let holder = std::fs::read_to_string(&path).unwrap_or_default();
                Err(exit::try_again(format!(
                    "another build is running in this checkout (process {})\nhint: wait until it has finished, \
                     or stop it with `kill {0}`, then run the same command again",
                    holder.trim()
                )))
            }
            Err(TryLockError::Error(error)) => {
                Err(error).with_context(|| format!("cannot lock {}", path.display()))
            }
        }
    }

    /// Takes the lock, waiting for another build to finish. Commands that have already done long work use this
    /// function.
    ///
    /// # Errors
    /// If the lock cannot be taken or the user stops the wait.
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

/// Returns `error` with the context `failed`, and with a hint if the user may not write to the checkout.
fn unwritable(mut failed: String, error: std::io::Error) -> anyhow::Error {
    if [ErrorKind::PermissionDenied, ErrorKind::ReadOnlyFilesystem].contains(&error.kind()) {
        failed.push_str(
            "\nhint: a build writes to the folder `target` in the checkout: get write access to this folder, or \
             clone the repository into a folder that you own",
        );
    }
    anyhow::Error::new(error).context(failed)
}

/// Build folders of a checkout.
pub struct Builds<'a> {
    workspace: &'a Workspace,
}

/// Build folder found in a checkout.
pub struct BuildFolder {
    /// Path of the folder.
    pub path: PathBuf,
    /// Name of the profile whose link points at the folder; `None` if no link points at the folder.
    pub current_of: Option<String>,
}

impl<'a> Builds<'a> {
    /// Returns the build folders of `workspace`.
    pub fn of(workspace: &'a Workspace) -> Self {
        Self { workspace }
    }

    /// Returns all build folders, sorted by name.
    ///
    /// # Errors
    /// If the folder of builds cannot be read.
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
    fn a_checkout_without_write_access_is_an_error_with_a_remedy() {
        let denied = unwritable("cannot open the lock a".to_string(), ErrorKind::PermissionDenied.into());
        assert!(denied.to_string().starts_with("cannot open the lock a\nhint: "), "{denied}");
        let other = unwritable("cannot open the lock a".to_string(), ErrorKind::StorageFull.into());
        assert_eq!(other.to_string(), "cannot open the lock a");
    }

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
