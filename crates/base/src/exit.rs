//! Exit codes of all programs, and an error that carries an exit code.
//!
//! [`TABLE`] lists every code. A test compares the table with the page `docs/src/run/exit-codes.md`.

use std::error::Error;
use std::fmt;

/// The command succeeded.
pub const DONE: u8 = 0;
/// The command failed.
pub const FAILED: u8 = 1;
/// The command line is invalid. clap exits with the same code.
pub const USAGE: u8 = 2;
/// The CPU or a device does not meet the requirements of the build (`EX_UNAVAILABLE` of sysexits.h).
pub const UNAVAILABLE: u8 = 69;
/// The same command may succeed later (`EX_TEMPFAIL` of sysexits.h).
pub const TRY_AGAIN: u8 = 75;
/// The user stopped the program with ctrl-C. By shell convention, the code is 128 + SIGINT.
pub const INTERRUPTED: u8 = 130;

/// Every exit code, with words that the code's row in the documentation contains.
pub const TABLE: [(u8, &str); 6] = [
    (DONE, "done"),
    (FAILED, "failed"),
    (USAGE, "wrong usage"),
    (UNAVAILABLE, "the CPU or a device does not meet the build's requirements"),
    (TRY_AGAIN, "try again"),
    (INTERRUPTED, "stopped by ctrl-C"),
];

/// Error that sets the exit code.
#[derive(Debug)]
pub struct Coded {
    /// Exit code of the program.
    pub code: u8,
    /// Message of the error.
    pub message: String,
}

impl fmt::Display for Coded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for Coded {}

/// Returns the exit code that `error` or one of its causes requests, otherwise [`FAILED`].
pub fn code_of(error: &impl AsRef<dyn Error + 'static>) -> u8 {
    let mut causes = std::iter::successors(Some(error.as_ref()), |&error| error.source());
    causes.find_map(|cause| cause.downcast_ref::<Coded>()).map_or(FAILED, |coded| coded.code)
}

#[cfg(feature = "anyhow")]
mod errors;
#[cfg(feature = "anyhow")]
pub use errors::{coded, interrupted, lacks, try_again, usage};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_gives_its_exit_code() {
        let coded = Coded { code: TRY_AGAIN, message: "busy".to_string() };
        let wrapped = std::io::Error::other(Coded { code: USAGE, message: "a flag".to_string() });
        assert_eq!(coded.to_string(), "busy");
        // An `io::Error` exposes the causes of the error inside it, but not that error itself.
        let errors: [Box<dyn Error>; 3] = [coded.into(), wrapped.into(), fmt::Error.into()];
        assert_eq!(errors.map(|error| code_of(&error)), [TRY_AGAIN, FAILED, FAILED]);
    }

    /// The page for users, `install.sh` and the CPU guard are not written in Rust, so a test compares their codes.
    #[test]
    fn the_documentation_lists_these_codes() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap();
        let page = read("docs/src/run/exit-codes.md");
        let rows = page.lines().filter_map(|line| {
            let (code, meaning) = line.strip_prefix("| ")?.split_once(" | ")?;
            Some((code.parse::<u8>().ok()?, meaning))
        });
        let rows: Vec<(u8, &str)> = rows.collect();
        assert_eq!(rows.iter().map(|row| row.0).collect::<Vec<u8>>(), TABLE.map(|row| row.0));
        for ((code, meaning), (_, words)) in rows.iter().zip(TABLE) {
            assert!(meaning.contains(words), "{code}: {meaning:?} does not contain {words:?}");
        }
        let script = read("deploy/install.sh");
        let line = script.lines().find_map(|line| line.strip_prefix("# Exit codes: ")).unwrap();
        let codes: Vec<u8> =
            line.split(", ").filter_map(|part| part.split(' ').next()?.parse().ok()).collect();
        assert_eq!(codes, TABLE.map(|row| row.0), "{line}");
        assert!(
            read("vendor/llama-link/csrc/guard.c").contains(&format!("{UNAVAILABLE} /* EX_UNAVAILABLE */"))
        );
    }
}
