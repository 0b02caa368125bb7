//! Selects and copies the files of a folder that belong to a source tree.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::digest::checked_name;

/// Path of a file, and its path within the tree.
pub(crate) type TreeFile = (PathBuf, String);

/// Returns the source files of a user's folder.
///
/// These files are skipped:
/// - `.git`
/// - builds: a folder with a `CMakeCache.txt`, and files that CMake writes next to the sources
/// - caches of interpreters
/// - models: every `*.gguf` file except the vocabularies that llama.cpp's tests read
///
/// Links are followed, except dangling links and links to a parent folder. `skipped` receives a message for each
/// skipped link.
pub(crate) fn sources(root: &Path, skipped: &mut dyn FnMut(&str)) -> Result<Vec<TreeFile>> {
    let mut files = Vec::new();
    let mut above = vec![real(root)?];
    walk(root, "", &mut above, &mut files, skipped)?;
    Ok(files)
}

fn walk(
    dir: &Path,
    prefix: &str,
    above: &mut Vec<PathBuf>,
    files: &mut Vec<TreeFile>,
    skipped: &mut dyn FnMut(&str),
) -> Result<()> {
    let failed = || format!("cannot list {}", dir.display());
    for entry in fs::read_dir(dir).with_context(failed)? {
        let entry = entry.with_context(failed)?;
        let path = entry.path();
        let Ok(metadata) = fs::metadata(&path) else {
            skipped(&format!("skipped {}: a dangling link", path.display()));
            continue;
        };
        if is_left_out(&entry.file_name(), &path, metadata.is_dir()) {
            continue;
        }
        let name = checked_name(&entry.file_name(), dir)?;
        if metadata.is_dir() {
            let target = real(&path)?;
            if above.contains(&target) {
                skipped(&format!("skipped {}: a link to a parent folder", path.display()));
                continue;
            }
            above.push(target);
            walk(&path, &format!("{prefix}{name}/"), above, files, skipped)?;
            above.pop();
        } else if metadata.is_file() {
            files.push((path, format!("{prefix}{name}")));
        } else {
            skipped(&format!("skipped {}: not a regular file", path.display()));
        }
    }
    Ok(())
}

fn is_left_out(name: &OsStr, path: &Path, is_dir: bool) -> bool {
    let name = name.to_string_lossy();
    if is_dir {
        matches!(&*name, ".git" | "CMakeFiles" | "__pycache__" | "node_modules")
            || path.join("CMakeCache.txt").exists()
    } else {
        matches!(&*name, ".git" | "CMakeCache.txt")
            || (name.ends_with(".gguf") && !name.starts_with("ggml-vocab-"))
    }
}

fn real(dir: &Path) -> Result<PathBuf> {
    dir.canonicalize().with_context(|| format!("cannot open the folder {}", dir.display()))
}

/// Copies `files` into the new folder `tree`. The copies belong to the store: they are writable even if the originals
/// are read-only, and executable if the originals are executable.
pub(crate) fn copy(files: &[TreeFile], tree: &Path) -> Result<()> {
    fs::create_dir_all(tree).with_context(|| format!("cannot create {}", tree.display()))?;
    let mut made = PathBuf::new();
    for (from, path) in files {
        let to = tree.join(path);
        // Files are sorted by folder, so most files need no new folder.
        if let Some(parent) = to.parent().filter(|parent| *parent != made) {
            fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
            made = parent.to_path_buf();
        }
        fs::copy(from, &to).with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let changed = fs::metadata(&to).and_then(|metadata| {
                let mode = if metadata.permissions().mode() & 0o100 == 0 { 0o644 } else { 0o755 };
                fs::set_permissions(&to, fs::Permissions::from_mode(mode))
            });
            changed.with_context(|| format!("cannot make {} writable", to.display()))?;
        }
    }
    Ok(())
}
