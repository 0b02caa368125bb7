//! Checks if an archive may be distributed.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::order::{Verified, Verify};
use install::{elf, files, name, program, sums, unpack};

/// Minimum length of a path to search for. Shorter paths occur in every program by chance.
const SHORTEST_PATH: usize = 5;

/// Unpacks the archive into a scratch folder and checks its contents.
///
/// # Errors
/// If a check fails.
pub fn verify(order: &Verify) -> Result<Verified> {
    let archive = &order.archive;
    let file = archive.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let list = archive.with_file_name(format!("{file}.sha256"));
    let told = sums::beside(&files::read_small(&list, 1 << 16)?, &list, &file)?;

    // The folder's name contains a space, because users may unpack an archive in any folder.
    let temp = base::scratch("anneal verify").context("cannot create a scratch folder")?;
    let name = name::of_archive(&file)?;
    let unpacked = unpack::unpack(files::open_regular(archive)?, name, temp.path(), |_| {})
        .with_context(|| format!("cannot unpack {}", archive.display()))?;
    ensure!(
        unpacked.sha256 == told,
        "checksum mismatch: {} has {told}, but the archive has {}",
        list.display(),
        unpacked.sha256
    );
    let folder = &unpacked.folder;
    let listed = sums::check(folder)?;
    check_modes(folder)?;
    check_record(folder)?;
    let mut needles: BTreeMap<String, String> = BTreeMap::new();
    for path in &order.paths {
        let path = path.to_string_lossy().trim_end_matches('/').to_string();
        if path.len() >= SHORTEST_PATH {
            needles.insert(format!("{path}/"), format!("the path {path} of the build host"));
        }
    }
    for name in listed.keys().map(String::as_str).chain([sums::LIST]) {
        let content = std::fs::read(folder.join(name)).with_context(|| format!("cannot read {name}"))?;
        for (needle, what) in &needles {
            let count = count(&content, needle.as_bytes());
            if let Some(first) = count.1 {
                bail!(
                    "{name} contains {what} ({} times, first at byte {first}: {:?}), which reveals \
                     the build host and prevents other machines from reproducing the file",
                    count.0,
                    around(&content, first)
                );
            }
        }
        let is_text = std::str::from_utf8(&content).is_ok();
        if let Some(host) = order.hostname.as_deref().filter(|_| is_text && name != sums::LIST) {
            check_hostname(name, &content, host)?;
        }
    }
    let version = if order.run { Some(run(folder, temp.path(), &order.emulator)?) } else { None };
    Ok(Verified { files: unpacked.files, version })
}

/// Checks the permissions: programs must be executable, libraries may be, and other files must not be.
fn check_modes(folder: &Path) -> Result<()> {
    for name in files::tree(folder)? {
        let mode = folder.join(&name).metadata()?.permissions().mode() & 0o777;
        let expected =
            if name.starts_with("bin/") || name.starts_with("lib/") { [0o755, 0o644] } else { [0o644; 2] };
        ensure!(expected.contains(&mode), "{name} has the mode {mode:o}");
        ensure!(!name.starts_with("bin/") || mode == 0o755, "{name} is not executable (mode {mode:o})");
    }
    Ok(())
}

/// Checks that the record does not contain a host name.
fn check_record(folder: &Path) -> Result<()> {
    let path = folder.join("build_info.json");
    let record: Value = serde_json::from_slice(&files::read_small(&path, 8 << 20)?)
        .context("cannot parse build_info.json in the archive")?;
    for (what, value) in [("hostname", &record["hostname"]), ("host.hostname", &record["host"]["hostname"])] {
        ensure!(value.is_null(), "build_info.json in the archive contains {what}: {value}");
    }
    Ok(())
}

/// Searches for the host name as a complete value, because names like `vm` or `debian` also occur as words.
fn check_hostname(name: &str, content: &[u8], host: &str) -> Result<()> {
    let quoted = format!("\"{host}\"");
    if let (_, Some(first)) = count(content, quoted.as_bytes()) {
        bail!("{name} contains the build host's name {quoted} at byte {first}");
    }
    Ok(())
}

/// Returns the number of occurrences of `needle` in `content`, and the offset of the first.
fn count(content: &[u8], needle: &[u8]) -> (usize, Option<usize>) {
    let (mut count, mut first, mut at) = (0, None, 0);
    while let Some(found) = find(&content[at..], needle) {
        first = first.or(Some(at + found));
        count += 1;
        at += found + needle.len();
    }
    (count, first)
}

/// Returns the offset of the first occurrence of `needle`. Searches for the needle's first byte with `position`,
/// because `position` is fast.
fn find(content: &[u8], needle: &[u8]) -> Option<usize> {
    let (first, mut at) = (*needle.first()?, 0);
    while let Some(found) = content[at..].iter().position(|byte| *byte == first) {
        at += found;
        if content[at..].starts_with(needle) {
            return Some(at);
        }
        at += 1;
    }
    None
}

/// Returns the text around the offset `at`, for messages.
fn around(content: &[u8], at: usize) -> String {
    let rest = &content[at..content.len().min(at + 80)];
    let text = rest.split(|byte| byte.is_ascii_control()).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

/// Runs the program as its recipient would: in another folder, with an empty environment.
fn run(folder: &Path, elsewhere: &Path, emulator: &[String]) -> Result<String> {
    if emulator.is_empty() {
        elf::check_host(&folder.join("bin/anneal"))?;
    }
    let there = elsewhere.join("with a space");
    std::fs::create_dir(&there)?;
    let moved = there.join("anneal moved");
    std::fs::rename(folder, &moved)?;
    let first = program::version(emulator, &moved.join("bin/anneal"), Path::new("/"))?;
    let second = program::version(emulator, &moved.join("bin/anneal"), &there)?;
    ensure!(first == second, "its --version prints {first:?} in one folder and {second:?} in another");
    Ok(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_found_wherever_it_stands() {
        assert_eq!(count(b"\0/a/b/c\0/a/b/d", b"/a/b/"), (2, Some(1)));
        assert_eq!(count(b"/a/x", b"/a/b/"), (0, None));
        assert_eq!(count(b"/a/a/b/", b"/a/b/"), (1, Some(2)));
        assert_eq!(around(b"\0/a/b/c\0d", 1), "/a/b/c");
    }
}
