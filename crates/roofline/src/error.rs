//! Reasons why a roof cannot be measured.

use build_info::Bytes;

/// Reason that a roof could not be measured.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum Error {
    /// More threads than cores, or none.
    #[error(
        "{threads} threads: this process may use 1 to {cores} ({bound_by}), and each thread has a core of its own"
    )]
    Threads {
        /// Number asked for.
        threads: u32,
        /// Number of cores that this process may use.
        cores: u32,
        /// Limit that allows no more.
        bound_by: String,
    },
    /// The buffers would not fit.
    #[error(
        "the read bandwidth needs buffers of {needed}, a multiple of the caches, and only {available} of memory are \
         available: close something, or raise the control group's limit"
    )]
    Memory {
        /// For the buffers.
        needed: Bytes,
        /// In the system or the control group.
        available: Bytes,
    },
    /// The system refused.
    #[error(
        "cannot bind a thread to CPU {cpu}: {why}; the affinity mask may have changed meanwhile, try again"
    )]
    Affinity {
        /// The CPU.
        cpu: u32,
        /// The system's reason.
        why: String,
    },
    /// The result of the loop is not what its operands must give.
    #[error(
        "{kernel} computed a wrong sum: no figure of this machine can be trusted, look at its memory and its CPU"
    )]
    WrongSum {
        /// The loop's name.
        kernel: &'static str,
    },
}
