//! gcc's profile counts: one `.gcda` file per object, matched by the object's path in the build tree.
//! <https://gcc.gnu.org/onlinedocs/gcc/Cross-profiling.html>

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use build_info::Sha256;

use crate::fs;

/// Counts of all objects of a build tree, in a folder named after their digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Path of the folder. Its files have the same relative paths as the objects in the build tree.
    pub folder: PathBuf,
    /// Digest of the names and contents.
    pub digest: Sha256,
}

/// Removes counts from the build tree `tree`, because an instrumented program adds to existing counts.
///
/// # Errors
/// If a file cannot be removed.
pub fn clear(tree: &Path) -> Result<()> {
    for file in files(tree)? {
        std::fs::remove_file(&file).with_context(|| format!("cannot remove {}", file.display()))?;
    }
    Ok(())
}

/// Moves the counts of the build tree `tree` to a folder in `profiles`.
///
/// # Errors
/// If there are no counts, or a file cannot be moved.
pub fn collect(tree: &Path, profiles: &Path) -> Result<Counts> {
    let found = files(tree)?;
    if found.is_empty() {
        bail!(
            "the training wrote no .gcda files to {}: the engine was not instrumented, or was killed before \
             it could write them",
            tree.display()
        );
    }
    let scratch = base::scratch_in(profiles, ".gcda-")
        .with_context(|| format!("cannot create a folder in {}", profiles.display()))?;
    let beside = scratch.path().join("counts");
    copy(&found, tree, &beside)?;
    let digest = fs::digest_tree(&beside, &[""])?;
    let folder = profiles.join(format!("{}.gcda", digest.short()));
    if !folder.is_dir() {
        std::fs::rename(&beside, &folder)
            .with_context(|| format!("cannot move {} into place", folder.display()))?;
    }
    clear(tree)?;
    Ok(Counts { folder, digest })
}

/// Copies the counts in `folder` to the future paths of the objects in the build tree `tree`.
///
/// # Errors
/// If a file cannot be copied.
pub fn lay_out(folder: &Path, tree: &Path) -> Result<()> {
    copy(&files(folder)?, folder, tree)
}

fn copy(files: &[PathBuf], from: &Path, to: &Path) -> Result<()> {
    for file in files {
        let target = to.join(file.strip_prefix(from).unwrap_or(file));
        let folder = target.parent().unwrap_or(to);
        std::fs::create_dir_all(folder)
            .and_then(|()| std::fs::copy(file, &target))
            .with_context(|| format!("cannot copy {} to {}", file.display(), target.display()))?;
    }
    Ok(())
}

fn files(tree: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![tree.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let entries =
            std::fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?;
        for entry in entries {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                folders.push(entry.path());
            } else if entry.path().extension().is_some_and(|extension| extension == "gcda") {
                found.push(entry.path());
            }
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_move_from_one_build_tree_to_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let (tree, profiles, next) =
            (folder.path().join("a"), folder.path().join("profiles"), folder.path().join("b"));
        std::fs::create_dir_all(tree.join("src/x.dir")).unwrap();
        std::fs::create_dir_all(&profiles).unwrap();
        std::fs::write(tree.join("src/x.dir/x.c.gcda"), "counts").unwrap();
        std::fs::write(tree.join("src/x.dir/x.c.o"), "object").unwrap();

        let counts = collect(&tree, &profiles).unwrap();
        assert!(!tree.join("src/x.dir/x.c.gcda").exists() && tree.join("src/x.dir/x.c.o").exists());
        lay_out(&counts.folder, &next).unwrap();
        assert_eq!(std::fs::read(next.join("src/x.dir/x.c.gcda")).unwrap(), b"counts");
        assert!(!next.join("src/x.dir/x.c.o").exists());

        let error = collect(&tree, &profiles).unwrap_err().to_string();
        assert!(error.contains("no .gcda files"), "{error}");
        // Equal counts yield the same folder.
        std::fs::write(tree.join("src/x.dir/x.c.gcda"), "counts").unwrap();
        assert_eq!(collect(&tree, &profiles).unwrap(), counts);
        assert_eq!(std::fs::read_dir(&profiles).unwrap().count(), 1);
        // Different counts yield a different folder.
        std::fs::write(tree.join("src/x.dir/x.c.gcda"), "others").unwrap();
        let others = collect(&tree, &profiles).unwrap();
        assert_ne!(others, counts);
        assert_eq!(std::fs::read(others.folder.join("src/x.dir/x.c.gcda")).unwrap(), b"others");
    }
}
