//! What a program asks the loader for: libraries, and versions of their symbols.

use std::collections::BTreeSet;

use object::elf::{self, FileHeader64};
use object::read::elf::{Dyn, FileHeader};
use object::{Endianness, read};

/// What the loader has to find before a program starts; nothing for what is linked statically or not yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dynamic {
    /// The libraries, as `DT_NEEDED` names them: `libc.so.6`.
    pub libraries: BTreeSet<String>,
    /// Versions of symbols of all of them: `GLIBC_2.17`.
    pub versions: BTreeSet<String>,
}

impl Dynamic {
    /// Reads the ELF file of 64 bits in `bytes`.
    ///
    /// # Errors
    /// When it is none, or is damaged.
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

    /// The newest version of glibc that any symbol wants, as the two numbers in `GLIBC_2.34`. Others that glibc has, such
    /// as `GLIBC_PRIVATE` and `GLIBC_ABI_DT_RELR`, are no numbers.
    pub fn glibc(&self) -> Option<(u32, u32)> {
        self.versions.iter().filter_map(|name| numbers(name)).max()
    }
}

fn numbers(version: &str) -> Option<(u32, u32)> {
    let (major, rest) = version.strip_prefix("GLIBC_")?.split_once('.')?;
    // `GLIBC_2.2.5` is x86-64's first, and older than every floor.
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
