//! The links by which shells, man and completions find what is current.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::prefix::{Prefix, foreign, is_there};
use crate::files;

/// Where man pages lie, in an archive and below a prefix.
const MAN: &str = "share/man/man1";

/// Files that have a link of the same name below the prefix, beside the man pages.
const FIXED: [&str; 4] = [
    "bin/anneal",
    "share/bash-completion/completions/anneal",
    "share/zsh/site-functions/_anneal",
    "share/fish/vendor_completions.d/anneal.fish",
];

/// What a link at `name` below the prefix `root` holds: relative, so that the whole prefix may be moved. Behind a link of the
/// user's own (`~/.local/bin`, say) the relative way leads elsewhere: there it is absolute.
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

/// Whether the link at `name` is one of ours.
fn is_ours(prefix: &Prefix, name: &str) -> bool {
    fs::read_link(prefix.root().join(name)).is_ok_and(|found| found == target(prefix.root(), name))
}

/// Names that the version in `tree` wants links for.
fn wanted(tree: &Path) -> Vec<String> {
    let fixed = FIXED.into_iter().filter(|name| tree.join(name).is_file()).map(str::to_string);
    fixed.chain(man_pages(tree)).collect()
}

/// Pages of ours below `root`: of an archive, or of a prefix.
fn man_pages(root: &Path) -> Vec<String> {
    let entries = fs::read_dir(root.join(MAN)).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let ours = |name: &String| name.ends_with(".1") && (name == "anneal.1" || name.starts_with("anneal-"));
    let mut pages: Vec<String> = names.filter(ours).map(|name| format!("{MAN}/{name}")).collect();
    pages.sort();
    pages
}

/// Refuses when something of somebody else lies where a link of the version in `tree`, or of any version, would.
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

/// Links that were made for a version which is not current yet; they go again unless it becomes so.
pub struct PendingLinks {
    paths: Vec<PathBuf>,
}

impl PendingLinks {
    /// The version is current: they stay.
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

/// Makes the links that the version in `tree` wants and that are not there yet. They lead through `current`, so they are
/// right for this version as soon as that is.
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
            .with_context(|| format!("cannot make the link {}", path.display()))?;
        files::sync_folder(&prefix.root().join(folder))?;
        made.paths.push(path);
    }
    Ok(made)
}

/// Removes links of ours that lead nowhere: the current version has no such file.
pub fn sweep(prefix: &Prefix) -> Result<()> {
    for name in present(prefix) {
        let path = prefix.root().join(name);
        if !path.exists() {
            fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
    }
    Ok(())
}

/// Removes all links of ours.
pub fn remove(prefix: &Prefix) -> Result<()> {
    for name in present(prefix) {
        let path = prefix.root().join(name);
        fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
    }
    Ok(())
}

/// Names of the links of ours that are there.
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
        // Not made yet.
        assert_eq!(
            target(&temp.path().join("new"), "bin/anneal"),
            Path::new("../lib/anneal/current/bin/anneal")
        );
    }
}
