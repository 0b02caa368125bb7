//! Links through which shells, man and completions find the current version.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::files;
use crate::prefix::{Prefix, foreign, is_there};

/// Folder of man pages, in an archive and below a prefix.
const MAN: &str = "share/man/man1";

/// Files, other than man pages, that get a link of the same name below the prefix.
const FIXED: [&str; 4] = [
    "bin/anneal",
    "share/bash-completion/completions/anneal",
    "share/zsh/site-functions/_anneal",
    "share/fish/vendor_completions.d/anneal.fish",
];

/// Returns the target of a link at `name` below the prefix `root`. The target is relative, so that the prefix can
/// be moved. If the link is reached through one of the user's symbolic links (such as `~/.local/bin`), a relative
/// path would lead elsewhere, so the target is absolute.
fn target(root: &Path, name: &str) -> PathBuf {
    let folder = name.rsplit_once('/').map_or("", |(folder, _)| folder);
    if let (Ok(root), Ok(there)) = (root.canonicalize(), root.join(folder).canonicalize())
        && there != root.join(folder)
    {
        return root.join("lib/anneal/current").join(name);
    }
    let up = "../".repeat(name.matches('/').count());
    PathBuf::from(format!("{up}lib/anneal/current/{name}"))
}

/// True if the link at `name` was made by Anneal.
fn is_ours(prefix: &Prefix, name: &str) -> bool {
    fs::read_link(prefix.root().join(name)).is_ok_and(|found| found == target(prefix.root(), name))
}

/// Returns the names for which the version in `tree` needs links.
fn wanted(tree: &Path) -> Vec<String> {
    let fixed = FIXED.into_iter().filter(|name| tree.join(name).is_file()).map(str::to_string);
    fixed.chain(man_pages(tree)).collect()
}

/// Returns the names of Anneal's man pages below `root`, which is an archive's folder or a prefix.
fn man_pages(root: &Path) -> Vec<String> {
    let entries = fs::read_dir(root.join(MAN)).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let ours = |name: &String| name.ends_with(".1") && (name == "anneal.1" || name.starts_with("anneal-"));
    let mut pages: Vec<String> = names.filter(ours).map(|name| format!("{MAN}/{name}")).collect();
    pages.sort();
    pages
}

/// Checks that no foreign file has the path of a link of the version in `tree`, or of any version if `tree` is `None`.
///
/// # Errors
/// If a foreign file has one of these paths.
pub fn check(prefix: &Prefix, tree: Option<&Path>) -> Result<()> {
    let wanted = match tree {
        Some(tree) => wanted(tree),
        None => FIXED.map(str::to_string).to_vec(),
    };
    for name in wanted {
        let path = prefix.root().join(&name);
        if is_there(&path) && !is_ours(prefix, &name) {
            return Err(foreign(&path));
        }
    }
    Ok(())
}

/// Links for a version that is not current yet. Dropping this value removes the links, unless the version becomes
/// current.
pub struct PendingLinks {
    paths: Vec<PathBuf>,
}

impl PendingLinks {
    /// Keeps the links, because the version has become current.
    pub fn keep(mut self) {
        self.paths.clear();
    }
}

impl Drop for PendingLinks {
    fn drop(&mut self) {
        for path in &self.paths {
            let _ = fs::remove_file(path);
        }
    }
}

/// Makes the missing links for the version in `tree`. The links lead through `current`, so they become valid when the
/// version becomes current.
///
/// # Errors
/// If a link cannot be made.
pub fn make(prefix: &Prefix, tree: &Path) -> Result<PendingLinks> {
    check(prefix, Some(tree))?;
    let mut made = PendingLinks { paths: Vec::new() };
    for name in wanted(tree) {
        let path = prefix.root().join(&name);
        if is_there(&path) {
            continue;
        }
        let folder = name.rsplit_once('/').map_or("", |(folder, _)| folder);
        prefix.make_folder(folder)?;
        symlink(target(prefix.root(), &name), &path)
            .with_context(|| format!("cannot create the link {}", path.display()))?;
        files::sync_folder(&prefix.root().join(folder))?;
        made.paths.push(path);
    }
    Ok(made)
}

/// Removes Anneal's links whose target does not exist in the current version.
///
/// # Errors
/// If a link cannot be removed.
pub fn sweep(prefix: &Prefix) -> Result<()> {
    for name in present(prefix) {
        let path = prefix.root().join(name);
        if !path.exists() {
            fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
    }
    Ok(())
}

/// Removes all of Anneal's links.
///
/// # Errors
/// If a link cannot be removed.
pub fn remove(prefix: &Prefix) -> Result<()> {
    for name in present(prefix) {
        let path = prefix.root().join(name);
        fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
    }
    Ok(())
}

/// Returns the names of Anneal's existing links.
fn present(prefix: &Prefix) -> Vec<String> {
    let all = FIXED.into_iter().map(str::to_string).chain(man_pages(prefix.root()));
    all.filter(|name| is_ours(prefix, name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_leads_through_current_wherever_it_lies() {
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path().canonicalize().unwrap().join("prefix");
        std::fs::create_dir_all(root.join("share/man/man1")).unwrap();
        std::fs::create_dir(temp.path().join("dotfiles")).unwrap();
        std::os::unix::fs::symlink("../dotfiles", root.join("bin")).unwrap();
        let page = "share/man/man1/anneal.1";
        assert_eq!(target(&root, page), Path::new("../../../lib/anneal/current").join(page));
        assert_eq!(target(&root, "bin/anneal"), root.join("lib/anneal/current/bin/anneal"));
        // The links were not made yet.
        assert_eq!(
            target(&temp.path().join("new"), "bin/anneal"),
            Path::new("../lib/anneal/current/bin/anneal")
        );
    }
}
