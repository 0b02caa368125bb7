//! Minimum speed of a download, so that a server that occasionally sends a byte cannot block a build for hours.

use std::fmt;
use std::time::Duration;

/// Waiting time over which the speed is averaged.
const INTERVAL: Duration = Duration::from_secs(30);

/// Minimum average speed in bytes per second; install.sh uses the same value.
const LOWEST: u64 = 1024;

/// Speed of one download since the last full interval. Only the time spent waiting for the server counts.
#[derive(Debug, Default)]
pub struct Pace {
    waited: Duration,
    bytes: u64,
}

impl Pace {
    /// Adds `bytes` that arrived after `waited`.
    ///
    /// # Errors
    /// If the average over an interval was too low.
    pub fn add(&mut self, waited: Duration, bytes: u64) -> Result<(), TooSlow> {
        self.waited += waited;
        self.bytes += bytes;
        if self.waited < INTERVAL {
            return Ok(());
        }
        let is_slow = self.bytes / self.waited.as_secs() < LOWEST;
        *self = Self::default();
        if is_slow { Err(TooSlow) } else { Ok(()) }
    }
}

/// Error for a server that is slower than [`Pace`] allows.
#[derive(Debug)]
pub struct TooSlow;

impl fmt::Display for TooSlow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the server sends less than {LOWEST} bytes per second")
    }
}

impl std::error::Error for TooSlow {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_slow_interval_ends_a_download() {
        let second = Duration::from_secs(1);
        let mut slow = Pace::default();
        let ended = (1..=60).find(|_| slow.add(second, 1).is_err());
        assert_eq!(ended, Some(30));
        let mut steady = Pace::default();
        assert!((0..300).all(|_| steady.add(second, LOWEST).is_ok()));
        // A fast interval does not make up for a later slow one.
        let mut stalled = Pace::default();
        assert!(stalled.add(INTERVAL, 1 << 30).is_ok());
        assert!(stalled.add(INTERVAL, 1).is_err());
    }
}
