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
/// The CPU or a device does not meet the requirements of the build (`EX_UNAVAILABLE` in sysexits.h).
pub const UNAVAILABLE: u8 = 69;
/// The same command may succeed later (`EX_TEMPFAIL` in sysexits.h).
pub const TRY_AGAIN: u8 = 75;
/// The user stopped the program with ctrl-C. By shell convention, the code is 128 + SIGINT.
pub const INTERRUPTED: u8 = 130;

/// All exit codes, each with a phrase that its row in the documentation must contain.
pub const TABLE: [(u8, &str); 6] = [
    (DONE, "done"),
    (FAILED, "failed"),
    (USAGE, "wrong usage"),
    (UNAVAILABLE, "the CPU or a device does not meet the build's requirements"),
    (TRY_AGAIN, "try again"),
    (INTERRUPTED, "stopped by ctrl-C"),
];

/// Error that sets the exit code. Its message and causes are those of the wrapped error.
#[derive(Debug)]
pub struct Coded {
    /// Exit code of the program.
    pub code: u8,
    /// Error that occurred.
    pub error: Box<dyn Error + Send + Sync>,
}

impl fmt::Display for Coded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl Error for Coded {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.error.source()
    }
}

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
        let coded = Coded { code: TRY_AGAIN, error: "busy".into() };
        let wrapped = std::io::Error::other(Coded { code: USAGE, error: "a flag".into() });
        assert_eq!(coded.to_string(), "busy");
        // `io::Error::source` skips the wrapped error and returns that error's cause.
        let errors: [Box<dyn Error>; 3] = [coded.into(), wrapped.into(), fmt::Error.into()];
        assert_eq!(errors.map(|error| code_of(&error)), [TRY_AGAIN, FAILED, FAILED]);
    }

    /// The user documentation, `install.sh` and the CPU guard are not written in Rust, so this test compares their
    /// codes.
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
