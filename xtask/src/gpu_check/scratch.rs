//! A folder for models, outside of any checkout, which goes at the end.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// How the folder is called; the number of the process follows.
const NAME: &str = "anneal-gpu-check.";

/// The folder. It goes when it is done with, also after ctrl-C; what a killed process left goes with the next one that is
/// made in the same place.
pub struct Scratch(PathBuf);

impl Scratch {
    /// Makes one in `folder`.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn make(folder: &Path) -> Result<Self> {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let pid = name.strip_prefix(NAME).and_then(|pid| pid.parse::<u32>().ok());
            if pid.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists()) {
                // Somebody else's stays: it cannot be removed.
                let _ = std::fs::remove_dir_all(entry.path());
            }
        }
        let path = folder.join(format!("{NAME}{}", std::process::id()));
        std::fs::create_dir_all(&path).with_context(|| {
            format!("cannot make a folder for models in {}: name another with --scratch", folder.display())
        })?;
        Ok(Self(path))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_and_takes_what_a_killed_process_left() {
        let folder = tempfile::tempdir().unwrap();
        // Linux has no such number.
        let dead = folder.path().join(format!("{NAME}{}", i32::MAX));
        let theirs = folder.path().join("anneal-gpu-check.json");
        std::fs::create_dir(&dead).unwrap();
        std::fs::write(dead.join("model.gguf"), "").unwrap();
        std::fs::write(&theirs, "").unwrap();
        let scratch = Scratch::make(folder.path()).unwrap();
        std::fs::write(scratch.path().join("model.gguf"), "").unwrap();
        assert!(!dead.exists() && theirs.exists());
        drop(scratch);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        let error = format!("{:#}", Scratch::make(Path::new("/proc")).err().unwrap());
        assert!(error.contains("--scratch"), "{error}");
    }
}
