//! Versions of a search, in order from the good end to the bad end.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use base::exit;
use llama_source::{OtherSource, Store};

/// Maximum number of versions. A binary search among these versions needs 18 builds.
const MOST: usize = 1 << 16;

/// Returns the versions of `range`, written as `GOOD..BAD`: published crate versions, commits on the first-parent line
/// of the clone `git_url`, or the sibling folders between two folders.
///
/// # Errors
/// If the range is malformed, or contains fewer than two versions.
pub fn between(range: &str, store: &Store, git_url: Option<&str>) -> Result<Vec<OtherSource>> {
    let (good, bad) = ends(range).ok_or_else(|| {
        exit::usage(format!(
            "{range:?} is not a range of versions\nhint: write GOOD..BAD, such as 0.1.155..0.1.161"
        ))
    })?;
    let named = |text: &str| store.named(text).map_err(|error| exit::usage(format!("{error:#}")));
    let versions = match (named(good)?, named(bad)?) {
        (OtherSource::Crate(good), OtherSource::Crate(bad)) => {
            let list = store.releases(false);
            let up = |low: &str, high: &str| -> Vec<OtherSource> {
                list.between(low, high).map(|release| OtherSource::Crate(release.version.clone())).collect()
            };
            let mut versions = up(&good, &bad);
            if versions.is_empty() {
                // The good version is newer.
                versions = up(&bad, &good);
                versions.reverse();
            }
            versions
        }
        (OtherSource::Git(good), OtherSource::Git(bad)) => commits(&good, &bad, git_url)?,
        (OtherSource::Path(good), OtherSource::Path(bad)) => folders(&good, &bad)?,
        _ => return Err(exit::usage(format!("{good} and {bad} are different kinds of versions"))),
    };
    let has = |text: &str| versions.iter().any(|version| version.to_string() == text);
    if versions.len() < 2 || versions.len() > MOST || !has(good) || !has(bad) {
        bail!(
            "{range} is not a range of two or more known versions\nhint: `cargo xtask vendor status` lists newer \
             versions of the crate; a folder must exist and contain CMakeLists.txt"
        );
    }
    Ok(versions)
}

/// Splits a range. Folders may contain `..`, so the dots between the ends have no slash next to them.
fn ends(range: &str) -> Option<(&str, &str)> {
    let is_end = |text: &str| !text.is_empty() && text != "." && text != "..";
    // In `a/../b`, the dots are part of a path.
    let in_path = |good: &str, bad: &str| {
        good.ends_with('/') || bad.starts_with("/..") || (bad.starts_with('/') && good.ends_with('.'))
    };
    let mut splits = range.match_indices("..").map(|(at, _)| (&range[..at], &range[at + 2..]));
    splits.find(|(good, bad)| is_end(good) && is_end(bad) && !in_path(good, bad))
}

/// Returns the commits from `good` to `bad` on the first-parent line of a clone.
fn commits(good: &str, bad: &str, git_url: Option<&str>) -> Result<Vec<OtherSource>> {
    let clone = git_url.filter(|url| Path::new(url).is_dir()).ok_or_else(|| {
        exit::usage(
            "a search among commits needs a clone with their history\nhint: name it with --git-url DIR",
        )
    })?;
    let output = Command::new("git")
        .args(["rev-list", "--reverse", "--first-parent", &format!("{good}..{bad}")])
        .current_dir(clone)
        .output()
        .context("cannot run git")?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr).trim().to_string();
        bail!("cannot list the commits of {clone}: {why}");
    }
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let after = text.lines().map(str::to_string);
    Ok(std::iter::once(good.to_string()).chain(after).map(OtherSource::Git).collect())
}

/// Returns the sibling folders from `good` to `bad`, in the order of their names. Numbers in names are compared as
/// numbers.
fn folders(good: &Path, bad: &Path) -> Result<Vec<OtherSource>> {
    let parent = good.parent().filter(|parent| Some(*parent) == bad.parent());
    let parent =
        parent.ok_or_else(|| exit::usage("the folders of a search must have the same parent folder"))?;
    let listed = std::fs::read_dir(parent).with_context(|| format!("cannot list {}", parent.display()))?;
    let folders =
        listed.flatten().map(|entry| entry.path()).filter(|path| path.join("CMakeLists.txt").is_file());
    let (first, last) = (order(good), order(bad));
    let (low, high) = if first <= last { (&first, &last) } else { (&last, &first) };
    let mut folders: Vec<PathBuf> = folders.filter(|path| (low..=high).contains(&&order(path))).collect();
    folders.sort_by_key(|path| order(path));
    if first > last {
        folders.reverse();
    }
    Ok(folders.into_iter().map(OtherSource::Path).collect())
}

/// Returns the parts of a folder's name: texts, and numbers with their values.
fn order(path: &Path) -> Vec<(u64, String)> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut parts: Vec<(u64, String)> = Vec::new();
    let mut was_digit = None;
    for letter in name.chars() {
        let digit = letter.is_ascii_digit();
        match parts.last_mut().filter(|_| was_digit == Some(digit)) {
            Some((_, text)) => text.push(letter),
            None => parts.push((0, letter.to_string())),
        }
        was_digit = Some(digit);
    }
    for (value, text) in &mut parts {
        *value = text.parse().unwrap_or(0);
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_has_two_ends() {
        let cases = [
            ("0.1.155..0.1.161", Some(("0.1.155", "0.1.161"))),
            ("./a..b/c", Some(("./a", "b/c"))),
            ("/x/v1../x/v2", Some(("/x/v1", "/x/v2"))),
            ("", None),
            ("0.1.155", None),
            ("..0.1.161", None),
            ("0.1.155..", None),
        ];
        for (range, expected) in cases {
            assert_eq!(ends(range), expected, "{range}");
        }
    }

    #[test]
    fn folders_between_the_ends_are_in_order() {
        let temp = tempfile::tempdir().unwrap();
        for name in ["v1", "v2", "v9", "v10", "v11", "other"] {
            std::fs::create_dir(temp.path().join(name)).unwrap();
            std::fs::write(temp.path().join(name).join("CMakeLists.txt"), "").unwrap();
        }
        std::fs::create_dir(temp.path().join("v3")).unwrap();
        let names = |good: &str, bad: &str| -> Vec<String> {
            let folders = folders(&temp.path().join(good), &temp.path().join(bad)).unwrap();
            let name = |other: &OtherSource| other.to_string().rsplit('/').next().unwrap().to_string();
            folders.iter().map(name).collect()
        };
        assert_eq!(names("v2", "v11"), ["v2", "v9", "v10", "v11"]);
        assert_eq!(names("v10", "v1"), ["v10", "v9", "v2", "v1"]);
        assert!(folders(Path::new("/a/v1"), Path::new("/b/v2")).is_err());
    }
}
