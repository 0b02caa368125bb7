//! Errors of roofline measurements.

use build_info::Bytes;

/// Error of a roofline measurement.
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
        "cannot measure the read bandwidth: its buffers need {needed}, several times the size of the caches, but \
         only {available} of memory is available\nhint: close other programs, or raise the memory limit of the \
         control group"
    )]
    Memory {
        /// Memory needed for the buffers.
        needed: Bytes,
        /// Memory available in the system or the control group.
        available: Bytes,
    },
    /// The system did not bind a thread to a CPU.
    #[error("cannot bind a thread to CPU {cpu}: {why}\nhint: the affinity mask may have changed; try again")]
    Affinity {
        /// Number of the CPU.
        cpu: u32,
        /// Error from the operating system.
        why: String,
    },
    /// The loop computed a result that does not match its operands.
    #[error(
        "{kernel} computed a wrong sum, so the measurements cannot be trusted\nhint: check the machine's memory and CPU"
    )]
    WrongSum {
        /// Name of the loop.
        kernel: &'static str,
    },
}
