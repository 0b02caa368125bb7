//! Changes the pins after an upgrade, and restores them in a rollback.
//!
//! `target/anneal/upgrade/previous.json` contains the old and the new text of every file that pins llama.cpp. The file
//! is written before any pin changes and removed after every pin is restored, so `--rollback` also works if the upgrade
//! was killed.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use base::exit;
use build::fs;
use build::stages::CheckoutLock;
use build::ui::Ui;
use build::workspace::Workspace;
use serde::{Deserialize, Serialize};

use super::write_record;

/// Maximum size of the record in bytes. The record contains three small files.
const LARGEST: u64 = 4 << 20;

/// Change of a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Replaced {
    /// Path relative to the checkout.
    path: PathBuf,
    old: String,
    new: String,
}

/// Upgrade that can be rolled back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Adopted {
    /// Profile whose current build changed.
    pub profile: String,
    /// Previous version.
    pub from: String,
    /// New version.
    pub to: String,
    /// Name of the previous build's folder.
    pub folder: String,
    files: Vec<Replaced>,
}

impl Adopted {
    /// Creates the record of an upgrade of `profile` from version `from` to `to`. `folder` is the build that is current
    /// before the upgrade, and `files` are the new texts of the pinning files.
    ///
    /// # Errors
    /// If a file cannot be read or is outside the checkout.
    pub fn new(
        workspace: &Workspace,
        profile: &str,
        [from, to]: [String; 2],
        folder: &Path,
        files: Vec<(PathBuf, String)>,
    ) -> Result<Self> {
        let replaced = |(path, new): (PathBuf, String)| {
            let old = fs::text(&path)?;
            let path = path
                .strip_prefix(workspace.root())
                .with_context(|| format!("{} is outside the checkout", path.display()))?;
            Ok(Replaced { path: path.to_path_buf(), old, new })
        };
        let folder = folder.file_name().context("the current build has no folder")?;
        Ok(Self {
            profile: profile.to_string(),
            from,
            to,
            folder: folder.to_string_lossy().into_owned(),
            files: files.into_iter().map(replaced).collect::<Result<_>>()?,
        })
    }

    /// Writes the new pins. The old pins are saved first.
    ///
    /// # Errors
    /// If a file cannot be written. `--rollback` then restores the old pins.
    pub fn write(&self, workspace: &Workspace) -> Result<()> {
        write_record(&record(workspace), self)?;
        self.put(workspace, |file| &file.new)
    }

    fn put<'a>(&'a self, workspace: &Workspace, text: impl Fn(&'a Replaced) -> &'a String) -> Result<()> {
        for file in &self.files {
            fs::write_atomically(&workspace.root().join(&file.path), text(file).as_bytes())?;
        }
        Ok(())
    }

    /// Checks that a rollback would overwrite only texts that the upgrade wrote.
    fn check(&self, workspace: &Workspace) -> Result<()> {
        for file in &self.files {
            let inside = file.path.components().all(|part| matches!(part, std::path::Component::Normal(_)));
            ensure!(
                inside,
                "the record of the upgrade names {}, which is not in the checkout",
                file.path.display()
            );
            let path = workspace.root().join(&file.path);
            let text = fs::text(&path)?;
            ensure!(
                text == file.old || text == file.new,
                "{} changed after the upgrade\nhint: undo your change, or edit the pins yourself",
                path.display()
            );
        }
        let plain =
            !self.folder.contains('/') && !self.folder.starts_with('.') && !self.profile.contains('/');
        ensure!(plain, "the record of the upgrade is damaged\nhint: remove {}", record(workspace).display());
        Ok(())
    }
}

/// Returns the path of the record.
fn record(workspace: &Workspace) -> PathBuf {
    workspace.anneal().join("upgrade/previous.json")
}

/// Restores the pins and the current build from before the last upgrade. Returns the upgrade that was undone.
///
/// # Errors
/// If there was no upgrade, a pin changed after it, or a file cannot be written.
pub fn rollback(workspace: &Workspace, ui: &Ui) -> Result<Adopted> {
    let path = record(workspace);
    let text = match base::read(&path, LARGEST) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(exit::usage("there is no upgrade to roll back"));
        }
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    };
    let adopted: Adopted = serde_json::from_slice(&text)
        .with_context(|| format!("{} is damaged\nhint: restore the pins with git", path.display()))?;
    adopted.check(workspace)?;
    let _lock = CheckoutLock::wait(workspace, ui)?;
    adopted.put(workspace, |file| &file.old)?;
    if workspace.anneal().join(&adopted.folder).join("build_info.json").is_file() {
        fs::switch_link(&workspace.current(&adopted.profile), Path::new(&adopted.folder))?;
    } else {
        ui.warn(format_args!(
            "the previous build {0} was removed\nhint: run `cargo xtask build --profile {1}`",
            adopted.folder, adopted.profile
        ));
    }
    std::fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
    Ok(adopted)
}

#[cfg(test)]
mod tests {
    use build::ui::Global;

    use super::*;

    struct Checkout {
        _temp: tempfile::TempDir,
        workspace: Workspace,
        ui: Ui,
    }

    fn checkout() -> Checkout {
        let temp = tempfile::tempdir().unwrap();
        let workspace = Workspace::at(temp.path());
        for folder in ["native-old", "native-new"] {
            let folder = workspace.anneal().join(folder);
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("build_info.json"), "{}").unwrap();
        }
        std::fs::write(temp.path().join("pins"), "old").unwrap();
        std::fs::write(temp.path().join("lock"), "old lock").unwrap();
        fs::switch_link(&workspace.current("native"), Path::new("native-old")).unwrap();
        Checkout { _temp: temp, workspace, ui: Ui::new(&Global { quiet: true, ..Global::default() }) }
    }

    impl Checkout {
        fn adopted(&self) -> Adopted {
            let root = self.workspace.root();
            let files =
                vec![(root.join("lock"), "new lock".to_string()), (root.join("pins"), "new".to_string())];
            let versions = ["1", "2"].map(String::from);
            let folder = self.workspace.current("native").canonicalize().unwrap();
            Adopted::new(&self.workspace, "native", versions, &folder, files).unwrap()
        }

        fn state(&self) -> (String, String, PathBuf) {
            let text = |name: &str| std::fs::read_to_string(self.workspace.root().join(name)).unwrap();
            (text("lock"), text("pins"), std::fs::read_link(self.workspace.current("native")).unwrap())
        }
    }

    #[test]
    fn a_rollback_restores_pins_and_build_after_any_part_of_an_upgrade() {
        // Number of pinning files that were written before the upgrade was killed, and whether the link was changed.
        for (written, linked) in [(0, false), (1, false), (2, false), (2, true)] {
            let checkout = checkout();
            let before = checkout.state();
            let adopted = checkout.adopted();
            assert_eq!(checkout.state(), before, "nothing changes before the decision");
            let part = Adopted { files: adopted.files[..written].to_vec(), ..adopted.clone() };
            part.write(&checkout.workspace).unwrap();
            fs::write_atomically(&record(&checkout.workspace), &serde_json::to_vec(&adopted).unwrap())
                .unwrap();
            if linked {
                fs::switch_link(&checkout.workspace.current("native"), Path::new("native-new")).unwrap();
                assert_eq!(checkout.state(), ("new lock".into(), "new".into(), "native-new".into()));
            }
            assert_eq!(rollback(&checkout.workspace, &checkout.ui).unwrap(), adopted);
            assert_eq!(checkout.state(), before, "{written} {linked}");
            let again = rollback(&checkout.workspace, &checkout.ui).unwrap_err();
            assert_eq!(exit::code_of(&again), exit::USAGE);
        }
    }

    #[test]
    fn a_rollback_overwrites_no_change_of_the_user() {
        let checkout = checkout();
        checkout.adopted().write(&checkout.workspace).unwrap();
        std::fs::write(checkout.workspace.root().join("pins"), "mine").unwrap();
        let before = checkout.state();
        let error = rollback(&checkout.workspace, &checkout.ui).unwrap_err().to_string();
        assert!(error.contains("changed after the upgrade"), "{error}");
        assert_eq!(checkout.state(), before);
        // A record that names a file outside the checkout changes nothing.
        let mut hostile = checkout.adopted();
        hostile.files[0].path = PathBuf::from("../pins");
        fs::write_atomically(&record(&checkout.workspace), &serde_json::to_vec(&hostile).unwrap()).unwrap();
        assert!(rollback(&checkout.workspace, &checkout.ui).is_err());
        assert_eq!(checkout.state(), before);
    }
}
