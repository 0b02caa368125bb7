//! Detects simultaneous tuning runs on one machine. Runs with the same record use a lock file. Runs with different
//! records detect each other through a socket.

use std::io::ErrorKind;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

/// Warning about two simultaneous tuning runs.
pub const BESIDE: &str = "another tuning run, with a different record, is in progress on this machine; the two runs disturb each other";

/// Name in the abstract socket namespace, so that a killed process leaves no file. Containers with their own network
/// namespace do not detect each other.
const NAME: &str = "anneal-tune";

/// Machine-wide lock of a tuning run, held until it is dropped.
pub enum TuningLock {
    Held(UnixListener),
    /// Another tuning run holds the lock.
    Taken,
    /// The system has no abstract sockets.
    Unknown,
}

impl TuningLock {
    /// Takes the lock, or notifies the tuning run that holds it.
    pub fn take() -> Self {
        Self::named(NAME)
    }

    fn named(name: &str) -> Self {
        let Ok(address) = SocketAddr::from_abstract_name(name) else { return TuningLock::Unknown };
        match UnixListener::bind_addr(&address) {
            Ok(listener) => TuningLock::Held(listener),
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                // The connection itself is the notification.
                let _ = UnixStream::connect_addr(&address);
                TuningLock::Taken
            }
            Err(_) => TuningLock::Unknown,
        }
    }

    /// True if another tuning run holds the lock.
    pub fn is_taken(&self) -> bool {
        matches!(self, TuningLock::Taken)
    }

    /// True if another tuning run has been active at any time since the lock was taken.
    pub fn was_shared(&self) -> bool {
        match self {
            TuningLock::Held(listener) => listener.set_nonblocking(true).is_ok() && listener.accept().is_ok(),
            TuningLock::Taken => true,
            TuningLock::Unknown => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_of_two_at_once_know_of_it() {
        let name = format!("anneal-test-{}", std::process::id());
        let alone = TuningLock::named(&name);
        assert!(!alone.is_taken() && !alone.was_shared());
        drop(alone);
        let first = TuningLock::named(&name);
        let second = TuningLock::named(&name);
        assert!(!first.is_taken() && second.is_taken());
        assert!(first.was_shared() && second.was_shared());
    }
}
