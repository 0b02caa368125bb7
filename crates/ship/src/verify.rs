//! Whether an archive is what a stranger may be given.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::order::{Verified, Verify};
use crate::{elf, files, name, program, sums, unpack};

/// Shorter ones are in every program by chance.
const SHORTEST_PATH: usize = 5;

/// Unpacks the archive elsewhere and looks at all that is in it.
pub fn verify(order: &Verify) -> Result<Verified> {
    let archive = &order.archive;
    let file = archive.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let list = archive.with_file_name(format!("{file}.sha256"));
    let told = sums::beside(&files::read_small(&list, 1 << 16)?, &list, &file)?;

    // Whoever unpacks it may do so in any folder.
    let temp = base::scratch("anneal verify").context("cannot make a folder")?;
    let name = name::of_archive(&file)?;
    let unpacked = unpack::unpack(files::open_regular(archive)?, name, temp.path(), |_| {})
        .with_context(|| format!("cannot unpack {}", archive.display()))?;
    ensure!(unpacked.sha256 == told, "{} tells {told}, the archive has {}", list.display(), unpacked.sha256);
    let folder = &unpacked.folder;
    let listed = sums::check(folder)?;
    check_modes(folder)?;
    check_record(folder)?;
    let mut needles: BTreeMap<String, String> = BTreeMap::new();
    for path in &order.paths {
        let path = path.to_string_lossy().trim_end_matches('/').to_string();
        if path.len() >= SHORTEST_PATH {
            needles
                .insert(format!("{path}/"), format!("the path {path} of the machine that it was built on"));
        }
    }
    for name in listed.keys().map(String::as_str).chain([sums::LIST]) {
        let content = std::fs::read(folder.join(name)).with_context(|| format!("cannot read {name}"))?;
        for (needle, what) in &needles {
            let count = count(&content, needle.as_bytes());
            if let Some(first) = count.1 {
                bail!(
                    "{name} holds {what}, {} times, first at byte {first}: {:?}; who it was built by is nobody's \
                     business, and no other machine gives the same bytes",
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

/// Nothing but programs may be run.
fn check_modes(folder: &Path) -> Result<()> {
    for name in files::tree(folder)? {
        let mode = folder.join(&name).metadata()?.permissions().mode() & 0o777;
        let expected =
            if name.starts_with("bin/") || name.starts_with("lib/") { [0o755, 0o644] } else { [0o644; 2] };
        ensure!(expected.contains(&mode), "{name} has the mode {mode:o}");
        ensure!(!name.starts_with("bin/") || mode == 0o755, "{name} may not be run (mode {mode:o})");
    }
    Ok(())
}

/// The record tells of no host by its name.
fn check_record(folder: &Path) -> Result<()> {
    let path = folder.join("build_info.json");
    let record: Value = serde_json::from_slice(&files::read_small(&path, 8 << 20)?)
        .context("cannot understand build_info.json in it")?;
    for (what, value) in [("hostname", &record["hostname"]), ("host.hostname", &record["host"]["hostname"])] {
        ensure!(value.is_null(), "build_info.json in it tells {what}: {value}");
    }
    Ok(())
}

/// A host's name as a whole value: as a word it may be `vm`, or `debian`.
fn check_hostname(name: &str, content: &[u8], host: &str) -> Result<()> {
    let quoted = format!("\"{host}\"");
    if let (_, Some(first)) = count(content, quoted.as_bytes()) {
        bail!("{name} holds the build host's name {quoted} at byte {first}");
    }
    Ok(())
}

/// How often `needle` is in `content`, and where first.
fn count(content: &[u8], needle: &[u8]) -> (usize, Option<usize>) {
    let (mut count, mut first, mut at) = (0, None, 0);
    while let Some(found) = find(&content[at..], needle) {
        first = first.or(Some(at + found));
        count += 1;
        at += found + needle.len();
    }
    (count, first)
}

/// The first place of `needle`: by its first byte, which `position` finds fast.
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

/// The text around `at`, for people.
fn around(content: &[u8], at: usize) -> String {
    let rest = &content[at..content.len().min(at + 80)];
    let text = rest.split(|byte| byte.is_ascii_control()).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

/// Runs it as a stranger would: elsewhere, with nothing in the environment, and told apart from its neighbours.
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
    ensure!(first == second, "it says {first:?} in one folder and {second:?} in another");
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
