//! Comparison of two archives file by file, for reproducibility checks.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result};

use crate::order::Difference;
use install::{files, name, unpack};

/// Compares two archives of the same name member by member. Compares other formats, such as Debian packages, byte by
/// byte.
///
/// # Errors
/// If a file cannot be read.
pub fn compare(one: &Path, other: &Path) -> Result<Vec<Difference>> {
    let name = one.file_name().unwrap_or_default().to_string_lossy();
    if !name::ENDINGS.iter().any(|ending| name.ends_with(ending)) {
        let what = content(one, other).with_context(|| format!("cannot compare {name}"))?;
        return Ok(what.map(|what| Difference { member: name.into_owned(), what }).into_iter().collect());
    }
    let temp = base::scratch("anneal-compare").context("cannot create a folder for unpacking")?;
    let mut folders = Vec::new();
    for (archive, own) in [(one, "one"), (other, "other")] {
        let into = temp.path().join(own);
        std::fs::create_dir(&into)?;
        let file = archive.file_name().unwrap_or_default().to_string_lossy();
        let unpacked = unpack::unpack(files::open_regular(archive)?, name::of_archive(&file)?, &into, |_| {})
            .with_context(|| format!("cannot unpack {}", archive.display()))?;
        folders.push((unpacked.folder, unpacked.sha256));
    }
    let [(first, first_sum), (second, second_sum)] = &folders[..] else { return Ok(Vec::new()) };
    let mut found = trees(first, second)?;
    if found.is_empty() && first_sum != second_sum {
        let member = one.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let what = "the files are equal, but their times, order or compression differ".to_string();
        found.push(Difference { member, what });
    }
    Ok(found)
}

fn trees(one: &Path, other: &Path) -> Result<Vec<Difference>> {
    let (first, second) = (files::tree(one)?, files::tree(other)?);
    let all: BTreeSet<&String> = first.iter().chain(&second).collect();
    let mut found = Vec::new();
    for member in all {
        let what = match (first.binary_search(member).is_ok(), second.binary_search(member).is_ok()) {
            (true, false) => Some("only in the first".to_string()),
            (false, true) => Some("only in the second".to_string()),
            _ => content(&one.join(member), &other.join(member))?,
        };
        found.extend(what.map(|what| Difference { member: member.clone(), what }));
    }
    Ok(found)
}

/// Returns the difference between the contents of two files, or `None` if they are equal.
fn content(one: &Path, other: &Path) -> Result<Option<String>> {
    let mode = |path: &Path| path.metadata().map(|meta| meta.permissions().mode() & 0o777);
    let (first, second) = (std::fs::read(one)?, std::fs::read(other)?);
    if let Some(at) = first.iter().zip(&second).position(|(one, other)| one != other) {
        let differing = first.iter().zip(&second).filter(|(one, other)| one != other).count();
        return Ok(Some(format!(
            "content at byte {at}, {differing} differing bytes in total; lengths {} and {} bytes",
            first.len(),
            second.len()
        )));
    }
    if first.len() != second.len() {
        return Ok(Some(format!("length, {} and {} bytes", first.len(), second.len())));
    }
    let (first, second) = (mode(one)?, mode(other)?);
    Ok((first != second).then(|| format!("mode, {first:o} and {second:o}")))
}
