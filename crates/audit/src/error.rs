//! Why a file or a set of rules was not taken.

use std::path::PathBuf;

/// Why a file or a set of rules was not taken.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A folder, a device, a pipe.
    #[error("{} is no regular file: name a program or a shared library", path.display())]
    NoFile {
        /// What was named.
        path: PathBuf,
    },
    /// Larger than any program.
    #[error("{} has {size} bytes, more than the {most} that are read for an audit", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        size: u64,
        /// The most that is taken.
        most: u64,
    },
    /// Something else than ELF.
    #[error("{} is no ELF file but {found}: name a program or a shared library for Linux", path.display())]
    NotElf {
        /// The file.
        path: PathBuf,
        /// What it looks like.
        found: &'static str,
    },
    /// A program for another CPU.
    #[error(
        "{} is for {found}, and only x86-64 can be audited: audit it on no other grounds than its compiler's flags",
        path.display()
    )]
    Architecture {
        /// The file.
        path: PathBuf,
        /// Its architecture.
        found: String,
    },
    /// Cut off, or made to mislead.
    #[error("{} is damaged ({what}): it may be cut off, build it or copy it again", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What does not fit.
        what: String,
    },
    /// Nothing that could be run.
    #[error("{} has no executable section: there is nothing to audit in it", path.display())]
    NoCode {
        /// The file.
        path: PathBuf,
    },
    /// The rules are not what they should be.
    #[error("cannot understand the rules in {}: {what}", path.display())]
    Rules {
        /// Their file.
        path: PathBuf,
        /// Where and why.
        what: String,
    },
}
