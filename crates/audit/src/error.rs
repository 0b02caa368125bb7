//! Errors about files and rules.

use std::path::PathBuf;

/// Reason why a file or a set of rules was rejected.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// Error from the operating system.
        source: std::io::Error,
    },
    /// The path is a folder, a device or a pipe.
    #[error("{} is not a regular file\nhint: give the path of a program or a shared library", path.display())]
    NoFile {
        /// Path that was given.
        path: PathBuf,
    },
    /// The file is larger than the limit.
    #[error(
        "{} is too large to audit: the file has {size} bytes, and the limit is {most} bytes",
        path.display()
    )]
    TooLarge {
        /// Path of the file.
        path: PathBuf,
        /// Size of the file, in bytes.
        size: u64,
        /// Maximum size, in bytes.
        most: u64,
    },
    /// The file is not an ELF file.
    #[error(
        "{} is not an ELF file ({found})\nhint: give the path of a program or a shared library for Linux",
        path.display()
    )]
    NotElf {
        /// Path of the file.
        path: PathBuf,
        /// Format that the file seems to have.
        found: &'static str,
    },
    /// The program is for another CPU architecture.
    #[error(
        "{} is for {found}, but only x86-64 programs can be audited\nhint: rely on the compiler flags instead",
        path.display()
    )]
    Architecture {
        /// Path of the file.
        path: PathBuf,
        /// Architecture of the program.
        found: String,
    },
    /// The file is truncated, damaged or hostile.
    #[error("{} is damaged or truncated ({what})\nhint: build or copy the file again", path.display())]
    Damaged {
        /// Path of the file.
        path: PathBuf,
        /// Description of the inconsistency.
        what: String,
    },
    /// The file contains no executable code.
    #[error("{} has no executable section, so there is nothing to audit", path.display())]
    NoCode {
        /// Path of the file.
        path: PathBuf,
    },
    /// The rules are invalid.
    #[error("cannot parse the rules in {}: {what}", path.display())]
    Rules {
        /// Path of the rules.
        path: PathBuf,
        /// Position and cause of the fault.
        what: String,
    },
}
