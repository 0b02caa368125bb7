//! What a program needs of the system that it is started on, as its ELF header tells.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result};
use object::read::elf::{Dyn, FileHeader};
use object::{Endianness, elf};

/// Shared libraries, and the Debian package of each; those of the C library are one.
const PACKAGES: [(&str, &str); 4] = [
    ("libstdc++.so.6", "libstdc++6"),
    ("libgcc_s.so.1", "libgcc-s1"),
    ("libgomp.so.1", "libgomp1"),
    ("libatomic.so.1", "libatomic1"),
];

/// Beginnings of the names of libraries that come with the C library.
const OF_LIBC: [&str; 6] = ["libc.so", "libm.so", "libpthread.so", "libdl.so", "librt.so", "ld-linux"];

/// What a program needs.
#[derive(Debug, PartialEq)]
pub struct Needs {
    /// Names of shared libraries.
    pub libraries: BTreeSet<String>,
    /// Oldest glibc that has every symbol, `2.34`.
    pub glibc: Option<String>,
}

impl Needs {
    /// Those of the programs and libraries at `paths` together.
    pub fn of(paths: &[&Path]) -> Result<Self> {
        let mut needs = Self { libraries: BTreeSet::new(), glibc: None };
        let mut newest = (0, 0);
        for path in paths {
            let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
            let (libraries, versions) =
                read(&bytes).with_context(|| format!("{} cannot be understood", path.display()))?;
            needs.libraries.extend(libraries);
            newest = versions.iter().filter_map(|name| glibc(name)).max().unwrap_or_default().max(newest);
        }
        // What lies beside the program is no need.
        let own = paths.iter().filter_map(|path| path.file_name()?.to_str());
        own.for_each(|name| {
            needs.libraries.remove(name);
        });
        if newest > (0, 0) {
            needs.glibc = Some(format!("{}.{}", newest.0, newest.1));
        }
        Ok(needs)
    }

    /// Debian's packages beyond the C library's, and libraries that none is known for.
    pub fn packages(&self) -> (Vec<String>, Vec<String>) {
        let (mut packages, mut unknown) = (Vec::new(), Vec::new());
        for library in &self.libraries {
            match PACKAGES.iter().find(|(name, _)| name == library) {
                Some((_, package)) => packages.push((*package).to_string()),
                None if OF_LIBC.iter().any(|name| library.starts_with(name)) => {}
                None => unknown.push(library.clone()),
            }
        }
        (packages, unknown)
    }
}

/// `GLIBC_2.34` as two numbers; others that glibc has, such as `GLIBC_PRIVATE` and `GLIBC_ABI_DT_RELR`, as none.
fn glibc(name: &str) -> Option<(u32, u32)> {
    let (major, rest) = name.strip_prefix("GLIBC_")?.split_once('.')?;
    Some((major.parse().ok()?, rest.split('.').next()?.parse().ok()?))
}

/// Names of needed libraries, and of needed versions of symbols.
fn read(bytes: &[u8]) -> object::Result<(Vec<String>, Vec<String>)> {
    let header = elf::FileHeader64::<Endianness>::parse(bytes)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, bytes)?;
    let mut libraries = Vec::new();
    if let Some((entries, strings)) = sections.dynamic(endian, bytes)? {
        let strings = sections.strings(endian, bytes, strings)?;
        for entry in entries.iter().filter(|entry| entry.tag(endian) == elf::DT_NEEDED) {
            libraries.push(String::from_utf8_lossy(entry.string(endian, strings)?).into_owned());
        }
    }
    let mut versions = Vec::new();
    if let Some((mut needed, strings)) = sections.gnu_verneed(endian, bytes)? {
        let strings = sections.strings(endian, bytes, strings)?;
        while let Some((_, mut of_library)) = needed.next()? {
            while let Some(version) = of_library.next()? {
                versions.push(String::from_utf8_lossy(version.name(endian, strings)?).into_owned());
            }
        }
    }
    Ok((libraries, versions))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_glibc_are_numbers() {
        let cases = [
            ("GLIBC_2.34", Some((2, 34))),
            ("GLIBC_2.2.5", Some((2, 2))),
            ("GLIBC_PRIVATE", None),
            ("GLIBC_ABI_DT_RELR", None),
            ("GLIBCXX_3.4", None),
        ];
        for (name, expected) in cases {
            assert_eq!(glibc(name), expected, "{name}");
        }
    }

    #[test]
    fn this_test_needs_the_c_library() {
        let needs = Needs::of(&[&std::env::current_exe().unwrap()]).unwrap();
        assert!(needs.libraries.iter().any(|name| name.starts_with("libc.so")), "{needs:?}");
        assert!(needs.glibc.as_deref().is_some_and(|version| version.starts_with("2.")), "{needs:?}");
        assert_eq!(needs.packages().1, Vec::<String>::new());
    }
}
