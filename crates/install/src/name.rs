//! Names of archives, which become names of folders, and names of the files in archives.

use anyhow::{Result, bail, ensure};
use semver::Version;

use crate::order::LONGEST_NAME;

/// Suffixes of an archive, the preferred one first.
pub const ENDINGS: [&str; 2] = [".tar.zst", ".tar.gz"];

/// Returns the name of the version in the archive `file`: the file's name without its suffix.
///
/// # Errors
/// If the file has another suffix or cannot name a version.
pub fn of_archive(file: &str) -> Result<&str> {
    let Some(name) = ENDINGS.iter().find_map(|ending| file.strip_suffix(ending)) else {
        bail!(
            "{file:?} is not an Anneal archive: its name ends in neither {} nor {}",
            ENDINGS[0],
            ENDINGS[1]
        );
    };
    check_version(name)?;
    Ok(name)
}

/// Checks that `name` can name a version, because the name becomes the name of a folder.
///
/// # Errors
/// If `name` is not a valid name.
pub fn check_version(name: &str) -> Result<()> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._+-".contains(c);
    ensure!(
        name.starts_with("anneal-") && name.len() <= LONGEST_NAME && name.chars().all(plain),
        "{name:?} is not a valid version name\nhint: use anneal-VERSION-TARGET-PROFILE, with at most \
         {LONGEST_NAME} letters, digits and ._+-"
    );
    Ok(())
}

/// Checks that `name` can name a file in an archive. Refuses absolute paths, `..`, empty parts and control
/// characters.
///
/// # Errors
/// If `name` is not a valid name.
pub fn check_member(name: &str) -> Result<()> {
    ensure!(!name.is_empty(), "the name is empty");
    ensure!(!name.chars().any(char::is_control), "the name {name:?} contains control characters");
    ensure!(!name.contains('\\'), "the name {name:?} contains a backslash");
    for part in name.split('/') {
        ensure!(
            !matches!(part, "" | "." | ".."),
            "the path {name:?} is absolute, leads outside the folder, or has an empty part"
        );
    }
    Ok(())
}

/// Returns the version, target triple and profile in the name of a version:
/// `anneal-0.1.0-x86_64-unknown-linux-gnu-portable`.
pub fn parts(name: &str) -> Option<(&str, &str, &str)> {
    let rest = name.strip_prefix("anneal-")?;
    let system = rest.find("-linux-")?;
    // The architecture and the vendor precede the system and contain no `-`.
    let vendor = rest[..system].rfind('-')?;
    let target = rest[..vendor].rfind('-')? + 1;
    let environment = system + "-linux-".len();
    let end = environment + rest[environment..].find('-')?;
    let (version, triple, profile) = (&rest[..target - 1], &rest[target..end], &rest[end + 1..]);
    (!version.is_empty() && !profile.is_empty()).then_some((version, triple, profile))
}

/// Parses a version for sorting by the rules of SemVer 2.0, section 11: 0.10.0 after 0.9.0, 1.0.0-rc.2 before
/// 1.0.0-rc.10, and both before 1.0.0. Invalid versions sort before all others.
pub fn order(version: &str) -> Option<Version> {
    Version::parse(version).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_could_leave_its_folder_is_refused() {
        for good in ["a", "bin/anneal", "share/doc/a b/README", "..a", "a..b/c"] {
            assert!(check_member(good).is_ok(), "{good}");
        }
        for wrong in ["", "/a", "a/", "a//b", ".", "..", "a/../b", "./a", "a\nb", "a\u{1b}[2J", "a\\b"] {
            assert!(check_member(wrong).is_err(), "{wrong:?} was taken");
        }
        for wrong in
            ["", "anneal", "anneal-/x", "anneal-..\u{0}", "other-1", &format!("anneal-{}", "x".repeat(93))]
        {
            assert!(check_version(wrong).is_err(), "{wrong:?} was taken");
        }
        check_version(&format!("anneal-{}", "x".repeat(92))).unwrap();
    }

    #[test]
    fn a_name_tells_version_target_and_profile() {
        let cases = [
            (
                "anneal-0.1.0-x86_64-unknown-linux-gnu-portable",
                Some(("0.1.0", "x86_64-unknown-linux-gnu", "portable")),
            ),
            (
                "anneal-1.0.0-rc.1-aarch64-unknown-linux-musl-native-lto",
                Some(("1.0.0-rc.1", "aarch64-unknown-linux-musl", "native-lto")),
            ),
            ("anneal-0.1.0-x86_64-unknown-linux-gnu", None),
            ("anneal-0.1.0", None),
        ];
        for (name, expected) in cases {
            assert_eq!(parts(name), expected, "{name}");
        }
    }

    #[test]
    fn versions_sort_as_people_count() {
        let ascending = [
            "of no kind",
            "0.9.0",
            "0.10.0",
            "1.0.0-alpha+2",
            "1.0.0-rc.1",
            "1.0.0-rc.2",
            "1.0.0-rc.10",
            "1.0.0-rc.10.x",
            "1.0.0",
            "1.0.0+build",
            "1.0.1-rc.1+build",
            "1.0.1",
        ];
        for pair in ascending.windows(2) {
            assert!(order(pair[0]) < order(pair[1]), "{pair:?}");
        }
    }
}
