//! Folders with packages that a file of the checkout pins by hash.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::scratch::Scratch;
use crate::workspace::Workspace;

/// Copy of the pins in the folder of the packages.
const PINS: &str = ".pins";

/// Returns the folder `target/anneal/tools/NAME` with the packages that the file `pins` of the checkout pins. If the
/// folder is missing or was made from other pins, `install` installs the packages into the folder that it is given.
///
/// # Errors
/// Errors of `install`, or if the folder cannot be written.
pub fn pinned(
    workspace: &Workspace,
    name: &str,
    pins: &Path,
    install: impl FnOnce(&Path) -> Result<()>,
) -> Result<PathBuf> {
    let tools = workspace.anneal().join("tools");
    let folder = tools.join(name);
    let pins = workspace.root().join(pins);
    let wanted = std::fs::read(&pins).with_context(|| format!("cannot read {}", pins.display()))?;
    if std::fs::read(folder.join(PINS)).is_ok_and(|installed| installed == wanted) {
        return Ok(folder);
    }
    // The packages are installed into a scratch folder first, because a partial installation would look complete.
    let scratch = Scratch::make(workspace, name)?;
    let beside = scratch.path().join(name);
    std::fs::create_dir(&beside)?;
    install(&beside)?;
    std::fs::write(beside.join(PINS), wanted)?;
    std::fs::create_dir_all(&tools)?;
    if folder.is_dir() {
        std::fs::remove_dir_all(&folder)?;
    }
    std::fs::rename(&beside, &folder)?;
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_installed_once_for_each_state_of_the_pins() {
        let root = tempfile::tempdir().unwrap();
        let workspace = Workspace::at(root.path());
        let pins = Path::new("pins.txt");
        let mut count = 0;
        let mut install = |fails: bool| {
            pinned(&workspace, "tool", pins, |folder| {
                count += 1;
                std::fs::write(folder.join("package"), count.to_string())?;
                if fails { anyhow::bail!("no network") } else { Ok(()) }
            })
            .map(|folder| std::fs::read_to_string(folder.join("package")).unwrap())
        };
        assert!(install(false).is_err(), "there are no pins");
        std::fs::write(root.path().join(pins), "a==1").unwrap();
        assert!(install(true).is_err());
        assert!(!root.path().join("target/anneal/tools/tool").exists());
        assert_eq!(install(false).unwrap(), "2");
        assert_eq!(install(false).unwrap(), "2");
        std::fs::write(root.path().join(pins), "a==2").unwrap();
        assert!(install(true).is_err());
        let kept = root.path().join("target/anneal/tools/tool/package");
        assert_eq!(std::fs::read_to_string(kept).unwrap(), "2", "a failed update removed the packages");
        assert_eq!(install(false).unwrap(), "4");
    }
}
