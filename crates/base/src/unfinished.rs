//! Names of unfinished files.

use std::ffi::OsString;

use crate::pending::os_string;

/// Suffix of an unfinished file's name.
pub(crate) const SUFFIX: &str = ".part";

/// Number of bytes kept from the destination's name, because a file name has at most 255 bytes.
const KEPT: usize = 200;

/// Name of an unfinished file: `.NAME.PROCESS-RANDOM.part`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unfinished<'a> {
    /// Name of the destination, or its first 200 bytes.
    pub name: &'a str,
    /// Process ID of the writer, valid on its machine or in its container.
    pub process: u32,
}

impl<'a> Unfinished<'a> {
    /// Parses a file name. Returns `None` if it is not the name of an unfinished file.
    pub fn parse(file_name: &'a str) -> Option<Self> {
        let (name, rest) = file_name.strip_prefix('.')?.strip_suffix(SUFFIX)?.rsplit_once('.')?;
        let (process, random) = rest.split_once('-')?;
        let is_random = !random.is_empty() && random.bytes().all(|byte| byte.is_ascii_alphanumeric());
        let process = Some(process).filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
        let process = process?.parse().ok()?;
        (is_random && !name.is_empty()).then_some(Self { name, process })
    }
}

/// Returns the prefix of the unfinished file's name for the destination `name`.
pub(crate) fn prefix(name: &[u8]) -> OsString {
    let mut end = name.len().min(KEPT);
    // A UTF-8 character must not be split.
    while end < name.len() && end > 0 && name[end] & 0xC0 == 0x80 {
        end -= 1;
    }
    let mut prefix = vec![b'.'];
    prefix.extend_from_slice(&name[..end]);
    prefix.extend_from_slice(format!(".{}-", std::process::id()).as_bytes());
    os_string(prefix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unfinished_files_are_recognised_by_their_names() {
        let cases = [
            (".cache.12-ab0Z.part", Some(("cache", 12))),
            (".a.b.json.7-x.part", Some(("a.b.json", 7))),
            (".cache.part", None),
            ("cache.12-ab0.part", None),
            (".cache.12-ab0", None),
            (".cache.12-.part", None),
            (".cache.-ab0.part", None),
            (".cache.+1-ab0.part", None),
            (".cache.x-ab0.part", None),
            (".cache.12-a/b.part", None),
            ("..12-ab0.part", None),
        ];
        for (name, expected) in cases {
            let expected = expected.map(|(name, process)| Unfinished { name, process });
            assert_eq!(Unfinished::parse(name), expected, "{name}");
        }
    }

    #[test]
    fn long_names_are_cut_between_characters() {
        let name = format!("{}é{}", "a".repeat(KEPT - 1), "b".repeat(50));
        let prefix = prefix(name.as_bytes()).into_string().expect("whole characters");
        assert!(prefix.starts_with(&format!(".{}.", "a".repeat(KEPT - 1))), "{prefix}");
    }
}
