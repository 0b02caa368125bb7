//! Licences of all components: copies the licence files, and lists the SPDX expressions of components without a
//! licence file.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::members::{DOCUMENTS, Member, Members, add};
use crate::order::Parts;
use crate::sbom::Described;

/// Prefixes of the names of licence files, in lower case.
const NAMES: [&str; 6] = ["license", "licence", "copying", "copyright", "notice", "unlicense"];

/// Names of folders in which crates keep licence files.
const FOLDERS: [&str; 3] = ["licenses", "licences", "license"];

/// Maximum depth at which vendored sources are searched.
const DEEPEST: usize = 6;

/// Adds the licence files of all components to `members` and returns the crates without a licence file.
///
/// # Errors
/// If a file cannot be read.
pub fn collect(parts: &Parts, crates: &[Described], members: &mut Members) -> Result<Vec<String>> {
    for licences in &parts.licences {
        let found = below(&licences.folder, if licences.deep { DEEPEST } else { 0 })?;
        ensure!(
            !found.is_empty(),
            "there is no licence file in {}, so {} cannot be distributed",
            licences.folder.display(),
            licences.name
        );
        for file in found {
            let name = file.strip_prefix(&licences.folder).unwrap_or(&file).to_string_lossy().into_owned();
            copy(&file, &format!("{}/{name}", licences.name), members)?;
        }
    }
    let mut without = Vec::new();
    let mut listed = String::new();
    for part in &parts.others {
        writeln!(listed, "{:<44} {}", format!("{}-{}", part.name, part.version), part.license)?;
    }
    for part in crates.iter().filter(|part| part.linked.is_foreign()) {
        let own = format!("{}-{}", part.linked.name, part.linked.version);
        let mut found = below(&part.folder, 0)?;
        let named = part.license_file.as_ref().map(|file| part.folder.join(file));
        found.extend(named.filter(|file| file.is_file() && !found.contains(file)));
        for file in &found {
            // A file named by `license-file` may be outside the crate's folder.
            let name = file.strip_prefix(&part.folder).ok().filter(|name| !name.starts_with(".."));
            let name = name.map(Path::to_path_buf).or_else(|| file.file_name().map(PathBuf::from));
            let name = name.with_context(|| format!("{} is not the path of a file", file.display()))?;
            copy(file, &format!("{own}/{}", name.display()), members)?;
        }
        let expression = part.license.as_deref().unwrap_or("none stated");
        if found.is_empty() {
            without.push(own.clone());
        }
        let where_found = if found.is_empty() { "(no file in it)" } else { "" };
        writeln!(listed, "{own:<44} {expression} {where_found}")?;
    }
    let listed: String = listed.lines().map(|line| format!("{}\n", line.trim_end())).collect();
    let text = format!(
        "Licences of this program's third-party components. Each folder contains the licence files of one \
         component.\nComponents without a licence file are listed below with their SPDX expression; \
         https://spdx.org/licenses/ contains the texts.\nsbom.cdx.json lists versions, digests and \
         dependencies.\n\n{listed}"
    );
    add(members, &format!("{DOCUMENTS}/THIRD-PARTY/README"), Member::made(text.into_bytes())?)?;
    Ok(without)
}

fn copy(file: &Path, name: &str, members: &mut Members) -> Result<()> {
    let real = file.canonicalize().with_context(|| format!("cannot read {}", file.display()))?;
    add(members, &format!("{DOCUMENTS}/THIRD-PARTY/{name}"), Member::of(&real, false)?)
}

/// Returns the licence files in `folder` and up to `depth` levels below it, in ascending order.
fn below(folder: &Path, depth: usize) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let entry = entry?;
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().to_lowercase();
        let kind = std::fs::metadata(&path).with_context(|| format!("cannot examine {}", path.display()))?;
        if kind.is_dir() {
            if FOLDERS.contains(&name.as_str()) {
                found.extend(all(&path)?);
            } else if depth > 0 && !name.starts_with('.') && !entry.file_type()?.is_symlink() {
                found.extend(below(&path, depth - 1)?);
            }
        } else if is_licence(&name) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Returns all files in a folder of licences.
fn all(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let mut found = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    found.retain(|path| path.is_file());
    Ok(found)
}

/// True if the file `name` contains a licence. `license.cmake` and `license.rs` are code.
fn is_licence(name: &str) -> bool {
    let source = [".cmake", ".rs", ".py", ".c", ".h", ".cpp", ".sh", ".json", ".toml", ".html"];
    // This HTML page is the only licence file of Rust's standard library.
    if name == "copyright-library.html" {
        return true;
    }
    NAMES.iter().any(|beginning| name.starts_with(beginning))
        && !source.iter().any(|ending| name.ends_with(ending))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_with_licences_are_known_by_their_names() {
        for yes in
            ["license", "license-mit", "licence.md", "copying.lesser", "notice", "unlicense", "copyright"]
        {
            assert!(is_licence(yes), "{yes}");
        }
        for no in ["license.cmake", "readme.md", "notices.rs", "lib.rs"] {
            assert!(!is_licence(no), "{no}");
        }
    }

    #[test]
    fn vendored_licences_are_found_below() {
        let folder = tempfile::tempdir().unwrap();
        for path in
            ["vendor/hash/LICENSE", "LICENSE", "src/a.c", ".git/LICENSE", "licenses/LICENSE-x", "licenses/y"]
        {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        let names = |depth| {
            let found = below(folder.path(), depth).unwrap();
            let names =
                found.iter().map(|path| path.strip_prefix(folder.path()).unwrap().display().to_string());
            names.collect::<Vec<_>>()
        };
        assert_eq!(names(0), ["LICENSE", "licenses/LICENSE-x", "licenses/y"]);
        assert_eq!(names(6), ["LICENSE", "licenses/LICENSE-x", "licenses/y", "vendor/hash/LICENSE"]);
    }
}
