//! Lists of digests as `sha256sum` writes and checks them.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use build_info::Sha256;

use crate::{files, name};

/// The list in an archive of all its other files.
pub const LIST: &str = "SHA256SUMS";

/// A list is larger than this only if it is none.
const LARGEST_LIST: u64 = 8 << 20;

/// The text that `sha256sum -c` reads.
pub fn text(sums: &BTreeMap<String, Sha256>) -> String {
    sums.iter().map(|(name, sha256)| format!("{sha256}  {name}\n")).collect()
}

/// Reads such a text; `path` is only for the error.
pub fn parse(text: &[u8], path: &Path) -> Result<BTreeMap<String, Sha256>> {
    let text = std::str::from_utf8(text).with_context(|| format!("{} is no text", path.display()))?;
    let mut sums = BTreeMap::new();
    for (number, line) in text.lines().enumerate() {
        let read = line.split_once(' ').and_then(|(digest, name)| {
            // `*` is how sha256sum marks what it read as binary.
            let name = name.strip_prefix([' ', '*'])?;
            Some((name.to_string(), Sha256::try_from(digest.to_ascii_lowercase()).ok()?))
        });
        let Some((name, digest)) = read else {
            bail!("line {} of {} is no sum as sha256sum writes it", number + 1, path.display());
        };
        ensure!(sums.insert(name.clone(), digest).is_none(), "{} lists {name:?} twice", path.display());
    }
    Ok(sums)
}

/// The digest that the file `list`, which lies beside an archive, tells for `name`.
pub fn beside(text: &[u8], list: &Path, name: &str) -> Result<Sha256> {
    let sums = parse(text, list)?;
    sums.get(name)
        .cloned()
        .with_context(|| format!("{} tells no sum of {name}; it belongs to another file", list.display()))
}

/// Holds every file below `folder` against its list, and the list against the files.
///
/// # Errors
/// When a file differs, is missing, or is not listed.
pub fn check(folder: &Path) -> Result<BTreeMap<String, Sha256>> {
    let list = folder.join(LIST);
    let listed = parse(&files::read_small(&list, LARGEST_LIST)?, &list)?;
    for name in listed.keys() {
        name::check_member(name).with_context(|| format!("{} lists what cannot be", list.display()))?;
    }
    let found = files::tree(folder)?;
    for name in found.iter().filter(|name| *name != LIST) {
        let expected = listed.get(name).with_context(|| {
            format!("{} is not listed in {LIST}: somebody put it there", folder.join(name).display())
        })?;
        let (_, digest) = files::digest(&folder.join(name))?;
        ensure!(
            digest == *expected,
            "{} is not what was packed: its SHA-256 is {digest}, {LIST} says {expected}",
            folder.join(name).display()
        );
    }
    if let Some(missing) = listed.keys().find(|name| found.binary_search(name).is_err()) {
        bail!("{} is missing; {LIST} lists it", folder.join(missing).display());
    }
    Ok(listed)
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
        assert!(check(folder.path()).unwrap_err().to_string().contains("not what was packed"));
        std::fs::remove_file(at("a")).unwrap();
        assert!(check(folder.path()).unwrap_err().to_string().contains("is missing"));
    }
}
