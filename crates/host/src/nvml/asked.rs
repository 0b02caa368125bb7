//! The driver, asked by those who cannot wait for it.

use std::sync::mpsc;
use std::time::Duration;
use std::{fmt, io};

use super::fault::Fault;
use super::{LibrarySource, Nvml};

/// How long the driver may take: waking eight GPUs without the persistence daemon takes some seconds, and a driver that hangs
/// takes for ever.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Why there is no answer. [`Display`](fmt::Display) says what mends it.
#[derive(Debug)]
pub enum Unanswered {
    /// The library or the driver refuses.
    By(Fault),
    /// The driver hangs.
    TooLate(Duration),
    /// It was not asked, since the system gives no thread.
    NotAsked(io::Error),
}

impl Unanswered {
    /// Whether another way to ask may get further.
    pub fn is_of_the_library(&self) -> bool {
        matches!(self, Unanswered::By(fault) if fault.is_of_the_library())
    }

    /// Whether library and driver are of two versions.
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
                "the NVIDIA driver did not answer within {limit:?}: `sudo dmesg | grep -i nvrm` says why; restart the \
                 machine where it stays so"
            ),
            Unanswered::NotAsked(why) => write!(
                f,
                "the NVIDIA driver was not asked, since no thread can be started: {why}; `ulimit -u` and the control group's \
                 pids.max say how many there may be"
            ),
        }
    }
}

impl std::error::Error for Unanswered {}

/// What `question` makes of the driver at `place` within `limit`. It is asked in a thread of its own, which stays behind where the
/// driver hangs: nothing can end it there.
///
/// # Errors
/// Why there is no answer.
pub fn ask<T: Send + 'static>(
    place: &LibrarySource,
    limit: Duration,
    question: impl FnOnce(&Nvml) -> Result<T, Fault> + Send + 'static,
) -> Result<T, Unanswered> {
    let (sender, receiver) = mpsc::channel();
    let place = place.clone();
    let thread = std::thread::Builder::new().name("nvml".to_string());
    let asked = thread.spawn(move || {
        // The receiver may have gone: nobody is interested then.
        let _ = sender.send(Nvml::start(&place).and_then(|nvml| question(&nvml)));
    });
    asked.map_err(Unanswered::NotAsked)?;
    match receiver.recv_timeout(limit) {
        Ok(answer) => answer.map_err(Unanswered::By),
        Err(_) => Err(Unanswered::TooLate(limit)),
    }
}
