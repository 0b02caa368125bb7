//! C library of this machine.

use std::process::Command;

use build_info::Glibc;

/// Returns the version of glibc, or `None` if the C library is not glibc.
pub fn glibc() -> Option<Glibc> {
    // `getconf` is a POSIX program; the variable is an extension of glibc.
    let output = Command::new("getconf").arg("GNU_LIBC_VERSION").output().ok()?;
    parse(&String::from_utf8_lossy(&output.stdout))
}

fn parse(text: &str) -> Option<Glibc> {
    // Development versions have a third number.
    let version = text.trim().strip_prefix("glibc ")?;
    version.splitn(3, '.').take(2).collect::<Vec<_>>().join(".").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_read_and_another_library_has_none() {
        let glibc = |text: &str| text.parse::<Glibc>().ok();
        for (text, expected) in [
            ("glibc 2.36\n", glibc("2.36")),
            ("glibc 2.39.9000", glibc("2.39")),
            ("", None),
            ("musl 1.2", None),
        ] {
            assert_eq!(parse(text), expected, "{text}");
        }
    }
}
