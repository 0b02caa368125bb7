//! Requirements that a program places on the dynamic loader: libraries, and versions of their symbols.

use std::collections::BTreeSet;

use object::elf::{self, FileHeader64};
use object::read::elf::{Dyn, FileHeader};
use object::{Endianness, read};

/// Libraries and symbol versions that the loader must find before a program starts. Empty for static programs and
/// object files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dynamic {
    /// Libraries as `DT_NEEDED` names them: `libc.so.6`.
    pub libraries: BTreeSet<String>,
    /// Symbol versions of all libraries: `GLIBC_2.17`.
    pub versions: BTreeSet<String>,
}

impl Dynamic {
    /// Reads the 64-bit ELF file `bytes`.
    ///
    /// # Errors
    /// If `bytes` is not a 64-bit ELF file, or is damaged.
    pub fn read(bytes: &[u8]) -> read::Result<Self> {
        let header = FileHeader64::<Endianness>::parse(bytes)?;
        let endian = header.endian()?;
        let sections = header.sections(endian, bytes)?;
        let mut found = Self::default();
        let text = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
        if let Some((entries, strings)) = sections.dynamic(endian, bytes)? {
            let strings = sections.strings(endian, bytes, strings)?;
            for entry in entries.iter().filter(|entry| entry.tag(endian) == elf::DT_NEEDED) {
                found.libraries.insert(text(entry.string(endian, strings)?));
            }
        }
        if let Some((mut libraries, strings)) = sections.gnu_verneed(endian, bytes)? {
            let strings = sections.strings(endian, bytes, strings)?;
            while let Some((_, mut versions)) = libraries.next()? {
                while let Some(version) = versions.next()? {
                    found.versions.insert(text(version.name(endian, strings)?));
                }
            }
        }
        Ok(found)
    }

    /// Returns the newest glibc version that a symbol requires: `(2, 34)` for `GLIBC_2.34`. Version names without
    /// numbers, such as `GLIBC_PRIVATE` and `GLIBC_ABI_DT_RELR`, are ignored.
    pub fn glibc(&self) -> Option<(u32, u32)> {
        self.versions.iter().filter_map(|name| numbers(name)).max()
    }
}

fn numbers(version: &str) -> Option<(u32, u32)> {
    let (major, rest) = version.strip_prefix("GLIBC_")?.split_once('.')?;
    // The third number is ignored: `GLIBC_2.2.5` is the first version on x86-64, and older than every minimum.
    Some((major.parse().ok()?, rest.split('.').next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_glibc_are_numbers() {
        let cases: [(&[&str], _); 4] = [
            (&["GLIBC_2.4", "GLIBC_2.34", "GLIBC_2.2.5"], Some((2, 34))),
            (&["GLIBC_2.2.5"], Some((2, 2))),
            (&["GLIBC_PRIVATE", "GLIBC_ABI_DT_RELR", "GLIBCXX_3.4"], None),
            (&[], None),
        ];
        for (names, expected) in cases {
            let versions = names.iter().map(|name| name.to_string()).collect();
            assert_eq!(Dynamic { versions, ..Dynamic::default() }.glibc(), expected, "{names:?}");
        }
    }

    #[test]
    fn this_test_needs_the_c_library() {
        let found = Dynamic::read(&std::fs::read(std::env::current_exe().unwrap()).unwrap()).unwrap();
        assert!(found.libraries.iter().any(|name| name.starts_with("libc.so")), "{found:?}");
        assert!(found.glibc().is_some_and(|(major, _)| major == 2), "{found:?}");
        assert!(Dynamic::read(b"no program").is_err());
    }
}
