//! Queries the server's state, and computes the rates between two successive states.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde::Serialize;
use server::status::Status;
use tokio::runtime::Runtime;
use tokio::time::timeout;

use crate::remote::{Failure, ServerAddress};

/// Time limit for a query.
const PATIENCE: Duration = Duration::from_secs(5);

/// Repeated queries of one server.
pub struct Looker {
    place: ServerAddress,
    /// Time between two queries.
    pub interval: Duration,
    runtime: Runtime,
    last: Option<(Instant, Status)>,
}

/// Result of a query.
#[derive(Clone, Debug)]
pub struct Seen {
    /// State of the server.
    pub status: Status,
    /// Rates since the previous query. `None` for the first query, and for the first query after a server restart.
    pub rates: Option<Rates>,
}

/// Rates between two successive states.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Rates {
    /// Time between the states, in seconds.
    pub seconds: f64,
    /// Evaluated prompt tokens per second.
    pub prefill_tokens_per_second: f64,
    /// Sampled tokens per second.
    pub decode_tokens_per_second: f64,
    /// Average number of busy CPUs.
    pub cpus: f64,
    /// Number of periods in which a CPU quota throttled the server.
    pub throttled_periods: Option<u64>,
}

impl Looker {
    /// Creates a `Looker` that queries the server at `place`.
    ///
    /// # Errors
    /// If the asynchronous runtime cannot be started.
    pub fn new(place: ServerAddress, interval: Duration) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        Ok(Looker {
            place,
            interval,
            runtime: runtime.context("cannot start the asynchronous runtime")?,
            last: None,
        })
    }

    /// Queries the state once.
    ///
    /// # Errors
    /// If the server does not answer in time, refuses the query, or sends an unexpected answer.
    pub fn look(&mut self) -> Result<Seen, Failure> {
        let asked = async { timeout(PATIENCE, self.place.get("/status")).await };
        let value = self.runtime.block_on(asked).unwrap_or_else(|_| {
            let why = format!("no answer within {} seconds", PATIENCE.as_secs());
            Err(Failure::Gone { place: self.place.to_string(), why, connected: true })
        })?;
        let now = Instant::now();
        let status: Status = serde_json::from_value(value)
            .map_err(|why| Failure::Odd { place: self.place.to_string(), why: why.to_string() })?;
        let last = self.last.replace((now, status.clone()));
        let rates = last.and_then(|(then, before)| Rates::between(&before, &status, now - then));
        Ok(Seen { status, rates })
    }

    /// Waits until the next query is due.
    pub fn rest(&self) {
        std::thread::sleep(self.interval);
    }
}

impl Rates {
    /// Computes the rates. `None` if the states belong to different server processes.
    pub fn between(before: &Status, after: &Status, time: Duration) -> Option<Self> {
        let seconds = time.as_secs_f64();
        let prefill = after.totals.prefill_tokens.checked_sub(before.totals.prefill_tokens)?;
        let decode = after.totals.decode_tokens.checked_sub(before.totals.decode_tokens)?;
        let cpu = after.cpu.seconds - before.cpu.seconds;
        if before.pid != after.pid || cpu < 0.0 || seconds <= 0.0 {
            return None;
        }
        let throttled = after.cpu.throttled_periods.zip(before.cpu.throttled_periods);
        Some(Rates {
            seconds,
            prefill_tokens_per_second: prefill as f64 / seconds,
            decode_tokens_per_second: decode as f64 / seconds,
            cpus: cpu / seconds,
            throttled_periods: throttled.map(|(now, then)| now.saturating_sub(then)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(pid: u32, prefill: u64, decode: u64, seconds: f64, throttled: Option<u64>) -> Status {
        let mut status = Status { pid, ..Status::default() };
        status.totals.prefill_tokens = prefill;
        status.totals.decode_tokens = decode;
        status.cpu.seconds = seconds;
        status.cpu.throttled_periods = throttled;
        status
    }

    #[test]
    fn rates_are_of_one_server() {
        let before = status(7, 100, 10, 1.0, Some(3));
        let two = Duration::from_secs(2);
        let rates = Rates::between(&before, &status(7, 300, 30, 4.0, Some(5)), two);
        let expected = Rates {
            seconds: 2.0,
            prefill_tokens_per_second: 100.0,
            decode_tokens_per_second: 10.0,
            cpus: 1.5,
            throttled_periods: Some(2),
        };
        assert_eq!(rates, Some(expected));
        // Cases without rates: a different process, a different process with the same ID, and two states at the same
        // time.
        assert_eq!(Rates::between(&before, &status(8, 300, 30, 4.0, None), two), None);
        assert_eq!(Rates::between(&before, &status(7, 50, 5, 0.5, None), two), None);
        assert_eq!(Rates::between(&before, &before, Duration::ZERO), None);
    }
}
