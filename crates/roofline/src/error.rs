//! Errors of roofline measurements.

use build_info::Bytes;

/// Reason why a roofline could not be measured.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum Error {
    /// The number of threads is 0 or exceeds the number of cores.
    #[error(
        "cannot measure with {threads} threads: this process may use 1 to {cores} ({bound_by}), one per core"
    )]
    Threads {
        /// Requested number of threads.
        threads: u32,
        /// Number of cores that this process may use.
        cores: u32,
        /// Limit that determines the number of cores.
        bound_by: String,
    },
    /// The buffers do not fit into the available memory.
    #[error(
        "the read bandwidth needs buffers of {needed}, a multiple of the caches, but only {available} of memory is \
         available: close other programs, or raise the limit of the control group"
    )]
    Memory {
        /// Memory needed for the buffers.
        needed: Bytes,
        /// Memory available in the system or the control group.
        available: Bytes,
    },
    /// The system did not bind a thread to a CPU.
    #[error("cannot bind a thread to CPU {cpu}: {why}; the affinity mask may have changed, so try again")]
    Affinity {
        /// Number of the CPU.
        cpu: u32,
        /// Error from the operating system.
        why: String,
    },
    /// The loop computed a result that does not match its operands.
    #[error(
        "{kernel} computed a wrong sum, so no figure of this machine can be trusted: check its memory and its CPU"
    )]
    WrongSum {
        /// Name of the loop.
        kernel: &'static str,
    },
}
