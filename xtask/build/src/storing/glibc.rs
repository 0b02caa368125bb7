//! The C library of this machine.

use std::process::Command;

use build_info::Glibc;

/// Its version; nothing where it is not glibc, or does not tell.
pub fn glibc() -> Option<Glibc> {
    // POSIX's program, of a variable that glibc adds.
    let output = Command::new("getconf").arg("GNU_LIBC_VERSION").output().ok()?;
    parse(&String::from_utf8_lossy(&output.stdout))
}

fn parse(text: &str) -> Option<Glibc> {
    // A version of development has a third number.
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
