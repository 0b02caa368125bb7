//! Shared libraries that a program needs, and Debian's packages for them.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result};
use audit::Dynamic;
use build_info::Glibc;

/// Shared libraries that are not part of the C library, and the Debian package of each.
const PACKAGES: [(&str, &str); 4] = [
    ("libstdc++.so.6", "libstdc++6"),
    ("libgcc_s.so.1", "libgcc-s1"),
    ("libgomp.so.1", "libgomp1"),
    ("libatomic.so.1", "libatomic1"),
];

/// Name prefixes of the libraries that belong to the C library.
const OF_LIBC: [&str; 6] = ["libc.so", "libm.so", "libpthread.so", "libdl.so", "librt.so", "ld-linux"];

/// Requirements of a program.
#[derive(Debug, PartialEq)]
pub struct Needs {
    /// Names of shared libraries.
    pub libraries: BTreeSet<String>,
    /// Oldest glibc that has every symbol that the program uses; `None` if the program uses no glibc.
    pub glibc: Option<Glibc>,
}

impl Needs {
    /// Returns the combined requirements of the programs and libraries at `paths`.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn of(paths: &[&Path]) -> Result<Self> {
        let mut needs = Self { libraries: BTreeSet::new(), glibc: None };
        for path in paths {
            let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
            let found = Dynamic::read(&bytes)
                .with_context(|| format!("cannot parse {} as a program", path.display()))?;
            needs.glibc = needs.glibc.max(found.glibc().map(Glibc::from));
            needs.libraries.extend(found.libraries);
        }
        // Libraries next to the program are not requirements.
        let own = paths.iter().filter_map(|path| path.file_name()?.to_str());
        own.for_each(|name| {
            needs.libraries.remove(name);
        });
        Ok(needs)
    }

    /// Returns the Debian packages other than the C library's, and the libraries without a known package.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_test_needs_the_c_library() {
        let needs = Needs::of(&[&std::env::current_exe().unwrap()]).unwrap();
        assert!(needs.libraries.iter().any(|name| name.starts_with("libc.so")), "{needs:?}");
        assert!(needs.glibc >= Some((2, 0).into()), "{needs:?}");
        assert_eq!(needs.packages().1, Vec::<String>::new());
    }
}
