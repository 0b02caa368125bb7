//! Queries to the driver with a time limit.

use std::sync::mpsc;
use std::time::Duration;
use std::{fmt, io};

use super::fault::Fault;
use super::{LibrarySource, Nvml};

/// Time limit for the driver. Waking eight GPUs without the persistence daemon takes some seconds, and a hanging
/// driver never answers.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Reason why the driver gave no answer. [`Display`](fmt::Display) includes a hint.
#[derive(Debug)]
pub enum Unanswered {
    /// The library or the driver reported an error.
    By(Fault),
    /// The driver did not answer within this time.
    TooLate(Duration),
    /// The system could not create a thread for the query.
    NotAsked(io::Error),
}

impl Unanswered {
    /// True if the library is at fault, so that another method may succeed.
    pub fn is_of_the_library(&self) -> bool {
        matches!(self, Unanswered::By(fault) if fault.is_of_the_library())
    }

    /// True if the library and the driver have different versions.
    pub fn is_version_mismatch(&self) -> bool {
        matches!(self, Unanswered::By(fault) if fault.is_version_mismatch())
    }
}

impl fmt::Display for Unanswered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unanswered::By(fault) => fault.fmt(f),
            Unanswered::TooLate(limit) => write!(
                f,
                "the NVIDIA driver did not answer within {limit:?}; see `sudo dmesg | grep -i nvrm`, \
                 and restart the machine if the problem persists"
            ),
            Unanswered::NotAsked(why) => write!(
                f,
                "cannot start a thread to query the NVIDIA driver: {why}; raise `ulimit -u` or the \
                 control group's pids.max"
            ),
        }
    }
}

impl std::error::Error for Unanswered {}

/// Passes the driver at `place` to `question` and returns the result, within `limit`. The query runs in a separate
/// thread. If the driver hangs, the thread remains, because nothing can end it.
///
/// # Errors
/// If the library, the driver or the thread fails, or the time limit is exceeded.
pub fn ask<T: Send + 'static>(
    place: &LibrarySource,
    limit: Duration,
    question: impl FnOnce(&Nvml) -> Result<T, Fault> + Send + 'static,
) -> Result<T, Unanswered> {
    let (sender, receiver) = mpsc::channel();
    let place = place.clone();
    let thread = std::thread::Builder::new().name("nvml".to_string());
    let asked = thread.spawn(move || {
        // Sending fails if the receiver has timed out, which is harmless.
        let _ = sender.send(Nvml::start(&place).and_then(|nvml| question(&nvml)));
    });
    asked.map_err(Unanswered::NotAsked)?;
    match receiver.recv_timeout(limit) {
        Ok(answer) => answer.map_err(Unanswered::By),
        Err(_) => Err(Unanswered::TooLate(limit)),
    }
}
