//! One tuning on a machine: those with one record have a lock, those with several see each other by this.

use std::io::ErrorKind;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

/// What is said of two at once.
pub const BESIDE: &str =
    "another tuning with a record of its own runs on this machine: two at once measure each other";

/// In the abstract namespace, so that nothing is left behind by one that is killed. Containers with a network of their
/// own do not see each other.
const NAME: &str = "anneal-tune";

/// The place of the tuning that measures, held until it is dropped.
pub enum TuningLock {
    Held(UnixListener),
    /// By another.
    Taken,
    /// This system has no such thing.
    Unknown,
}

impl TuningLock {
    /// Takes it, or tells the one that has it.
    pub fn take() -> Self {
        Self::named(NAME)
    }

    fn named(name: &str) -> Self {
        let Ok(address) = SocketAddr::from_abstract_name(name) else { return TuningLock::Unknown };
        match UnixListener::bind_addr(&address) {
            Ok(listener) => TuningLock::Held(listener),
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                // That it was knocked is all that it needs to know.
                let _ = UnixStream::connect_addr(&address);
                TuningLock::Taken
            }
            Err(_) => TuningLock::Unknown,
        }
    }

    /// Whether another tuning has it.
    pub fn is_taken(&self) -> bool {
        matches!(self, TuningLock::Taken)
    }

    /// Whether another tuning ran at any time since.
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
