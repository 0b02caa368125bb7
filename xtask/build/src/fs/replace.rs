//! Replacement of several files and folders together.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Finished move, with the previous content of the target.
struct Done<'a> {
    from: &'a Path,
    to: &'a Path,
    before: Option<PathBuf>,
}

/// Moves each file or folder from its first path to its second, replacing an existing file or folder. If one move
/// fails, all are undone. All moves together take only a few renames.
///
/// # Errors
/// If a file or folder cannot be moved.
pub fn replace_all<'a>(moves: impl IntoIterator<Item = (&'a Path, &'a Path)>) -> Result<()> {
    let mut done: Vec<Done> = Vec::new();
    for (from, to) in moves {
        if let Err(error) = replace(from, to, &mut done) {
            take_back(&done);
            return Err(error).with_context(|| format!("cannot move {} to {}", from.display(), to.display()));
        }
    }
    for before in done.iter().filter_map(|done| done.before.as_deref()) {
        // A leftover does no harm; the next replacement removes it.
        let _ = remove(before);
    }
    Ok(())
}

fn replace<'a>(from: &'a Path, to: &'a Path, done: &mut Vec<Done<'a>>) -> io::Result<()> {
    std::fs::create_dir_all(to.parent().unwrap_or(to))?;
    let beside =
        to.with_file_name(format!(".{}.before", to.file_name().unwrap_or_default().to_string_lossy()));
    let _ = remove(&beside);
    let before = match std::fs::rename(to, &beside) {
        Ok(()) => Some(beside),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    match std::fs::rename(from, to) {
        Ok(()) => {
            done.push(Done { from, to, before });
            Ok(())
        }
        Err(error) => {
            if let Some(before) = before {
                std::fs::rename(before, to)?;
            }
            Err(error)
        }
    }
}

/// Undoes the moves, last first.
fn take_back(done: &[Done]) {
    for Done { from, to, before } in done.iter().rev() {
        // An error while undoing would only hide the original error.
        let _ = std::fs::rename(to, from);
        if let Some(before) = before {
            let _ = std::fs::rename(before, to);
        }
    }
}

fn remove(path: &Path) -> io::Result<()> {
    if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder_with(path: &Path, content: &str) {
        std::fs::create_dir_all(path).unwrap();
        std::fs::write(path.join("kernels.so"), content).unwrap();
    }

    #[test]
    fn all_are_moved_or_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let read = |name: &str| std::fs::read_to_string(path(name)).unwrap();
        for (place, content) in [("new", "2"), ("there", "1")] {
            folder_with(&path(place).join("lib"), content);
            std::fs::create_dir(path(place).join("bin")).unwrap();
            std::fs::write(path(place).join("bin/anneal"), content).unwrap();
        }
        let moves = |last: &str| {
            ["lib", "bin/anneal", last].map(|name| (path("new").join(name), path("there").join(name)))
        };
        let all = |moves: &[(PathBuf, PathBuf); 3]| {
            replace_all(moves.iter().map(|(from, to)| (from.as_path(), to.as_path())))
        };
        let error = all(&moves("absent")).unwrap_err();
        assert!(format!("{error:#}").contains("absent"), "{error:#}");
        assert_eq!((read("there/lib/kernels.so"), read("there/bin/anneal")), ("1".into(), "1".into()));
        assert_eq!((read("new/lib/kernels.so"), read("new/bin/anneal")), ("2".into(), "2".into()));

        // Neither a missing target nor a leftover of an earlier replacement causes an error.
        std::fs::write(path("new").join("record"), "2").unwrap();
        folder_with(&path("there/.lib.before"), "0");
        all(&moves("record")).unwrap();
        assert_eq!((read("there/lib/kernels.so"), read("there/bin/anneal")), ("2".into(), "2".into()));
        assert_eq!(read("there/record"), "2");
        assert!(!path("there/.lib.before").exists() && !path("there/bin/.anneal.before").exists());
    }
}
