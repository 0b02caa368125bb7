//! Lists of digests in the format of `sha256sum`.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use build_info::Sha256;

use crate::{files, name};

/// Name of the file in an archive that lists the digests of all other files.
pub const LIST: &str = "SHA256SUMS";

/// Maximum size of a list.
const LARGEST_LIST: u64 = 8 << 20;

/// Returns the list as text for `sha256sum -c`.
pub fn text(sums: &BTreeMap<String, Sha256>) -> String {
    sums.iter().map(|(name, sha256)| format!("{sha256}  {name}\n")).collect()
}

/// Parses the text of a list; `path` is only used in the error.
///
/// # Errors
/// If a line is not a digest and a name.
pub fn parse(text: &[u8], path: &Path) -> Result<BTreeMap<String, Sha256>> {
    let text = std::str::from_utf8(text).with_context(|| format!("{} is not a text file", path.display()))?;
    let mut sums = BTreeMap::new();
    for (number, line) in text.lines().enumerate() {
        let read = line.split_once(' ').and_then(|(digest, name)| {
            // sha256sum marks files that it read in binary mode with `*`.
            let name = name.strip_prefix([' ', '*'])?;
            Some((name.to_string(), Sha256::try_from(digest.to_ascii_lowercase()).ok()?))
        });
        let Some((name, digest)) = read else {
            bail!("line {} of {} is not a checksum in the format of sha256sum", number + 1, path.display());
        };
        ensure!(sums.insert(name.clone(), digest).is_none(), "{} lists {name:?} twice", path.display());
    }
    Ok(sums)
}

/// Returns the digest for `name` in the file `list` next to an archive.
///
/// # Errors
/// If the file has no line for `name`.
pub fn beside(text: &[u8], list: &Path, name: &str) -> Result<Sha256> {
    let sums = parse(text, list)?;
    sums.get(name).cloned().with_context(|| {
        format!("{} has no checksum for {name}; it may belong to another archive", list.display())
    })
}

/// Reads the list in `folder`.
///
/// # Errors
/// If the list cannot be read or contains an invalid name.
pub fn read(folder: &Path) -> Result<BTreeMap<String, Sha256>> {
    let list = folder.join(LIST);
    let listed = parse(&files::read_small(&list, LARGEST_LIST)?, &list)?;
    for name in listed.keys() {
        name::check_member(name).with_context(|| format!("{} contains an invalid name", list.display()))?;
    }
    Ok(listed)
}

/// Checks every file below `folder` against the list in `folder`, and the list against the files.
///
/// # Errors
/// If a file differs, is missing, or is not listed.
pub fn check(folder: &Path) -> Result<BTreeMap<String, Sha256>> {
    let listed = read(folder)?;
    compare(folder, &listed)?;
    Ok(listed)
}

/// Checks every file below `folder`, except its list, against `listed`, and `listed` against the files.
///
/// # Errors
/// If a file differs, is missing, or is not listed.
pub fn compare(folder: &Path, listed: &BTreeMap<String, Sha256>) -> Result<()> {
    let found = files::tree(folder)?;
    for name in found.iter().filter(|name| *name != LIST) {
        let expected = listed.get(name).with_context(|| {
            format!("{} is not listed in {LIST}, so it was added later", folder.join(name).display())
        })?;
        let (_, digest) = files::digest(&folder.join(name))?;
        ensure!(
            digest == *expected,
            "checksum mismatch: the SHA-256 of {} is {digest}, but {LIST} has {expected}",
            folder.join(name).display()
        );
    }
    if let Some(missing) = listed.keys().find(|name| found.binary_search(name).is_err()) {
        bail!("{} is missing, but {LIST} lists it", folder.join(missing).display());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_as_it_is_written_and_nonsense_is_refused() {
        let digest = Sha256::from_bytes(&[7; 32]);
        let sums = BTreeMap::from([("a b".to_string(), digest.clone()), ("c".to_string(), digest.clone())]);
        let path = Path::new("list");
        assert_eq!(parse(text(&sums).as_bytes(), path).unwrap(), sums);
        assert_eq!(parse(format!("{digest} *c\n").as_bytes(), path).unwrap()["c"], digest);
        for wrong in
            ["x", &format!("{digest}"), &format!("{digest} a"), &format!("{digest}  a\n{digest}  a\n")]
        {
            assert!(parse(wrong.as_bytes(), path).is_err(), "{wrong:?} was taken");
        }
        assert!(beside(text(&sums).as_bytes(), path, "d").is_err());
    }

    #[test]
    fn a_changed_a_missing_and_a_foreign_file_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("a"), "1").unwrap();
        let sums = BTreeMap::from([("a".to_string(), files::digest(&at("a")).unwrap().1)]);
        std::fs::write(at(LIST), text(&sums)).unwrap();
        check(folder.path()).unwrap();
        std::fs::write(at("b"), "").unwrap();
        assert!(check(folder.path()).unwrap_err().to_string().contains("not listed"));
        std::fs::remove_file(at("b")).unwrap();
        std::fs::write(at("a"), "2").unwrap();
        assert!(check(folder.path()).unwrap_err().to_string().contains("checksum mismatch"));
        std::fs::remove_file(at("a")).unwrap();
        assert!(check(folder.path()).unwrap_err().to_string().contains("is missing"));
    }
}
