//! Where archives lie till it is known that they may be passed on.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// How the folder is called; the number of the process follows.
const NAME: &str = ".packing.";

/// A folder in the one that installers look into, and hidden there: on the same file system whatever is mounted, so that
/// one rename moves an archive out of it. It goes when it is done with.
pub struct Aside(PathBuf);

impl Aside {
    /// Makes it in `out`, and removes those of processes that were killed.
    pub fn make(out: &Path) -> Result<Self> {
        for entry in std::fs::read_dir(out).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let pid = name.strip_prefix(NAME).and_then(|pid| pid.parse::<u32>().ok());
            if pid.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists()) {
                let _ = std::fs::remove_dir_all(entry.path());
            }
        }
        let folder = out.join(format!("{NAME}{}", std::process::id()));
        std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        Ok(Self(folder))
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.0
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_placed_goes_and_so_does_what_a_killed_one_left() {
        let out = tempfile::tempdir().unwrap();
        // Linux has no such number.
        let dead = out.path().join(format!("{NAME}{}", i32::MAX));
        let theirs = out.path().join(".packing.of somebody");
        for folder in [&dead, &theirs] {
            std::fs::create_dir(folder).unwrap();
        }
        let aside = Aside::make(&out.path().join("")).unwrap();
        std::fs::write(aside.folder().join("a"), "").unwrap();
        assert!(!dead.exists() && theirs.exists());
        drop(aside);
        assert_eq!(std::fs::read_dir(out.path()).unwrap().count(), 1);
    }
}
