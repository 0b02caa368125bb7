//! Limit of the log lines for requests without a valid key.

use std::collections::HashSet;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::job::Client;

/// Time in which a client gets one line.
const WINDOW: Duration = Duration::from_secs(60);

/// Clients that are remembered. Clients beyond this number get no line until the window ends, so that an attacker with many
/// addresses fills neither the memory nor the log.
const CLIENTS: usize = 256;

/// Clients that have had a line in this window.
#[derive(Debug, Default)]
pub struct LogLimit {
    began: Option<Instant>,
    clients: HashSet<Client>,
    skipped: u64,
}

/// Lines to write for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lines {
    /// True if the request gets a line of its own.
    pub own: bool,
    /// Number of requests in the window before this one that got no line.
    pub skipped: u64,
}

impl LogLimit {
    /// Decides about a request of `client` at `now`.
    pub fn decide(&mut self, client: &Client, now: Instant) -> Lines {
        let mut skipped = 0;
        if self.began.is_none_or(|began| now.duration_since(began) >= WINDOW) {
            skipped = self.skipped;
            *self = LogLimit { began: Some(now), ..LogLimit::default() };
        }
        let own = !self.clients.contains(client) && self.clients.len() < CLIENTS;
        match own {
            true => drop(self.clients.insert(client.clone())),
            false => self.skipped += 1,
        }
        Lines { own, skipped }
    }
}

/// Decides about a request of `client` that the server refused with 401 now.
pub fn unauthorized(client: &Client) -> Lines {
    static LIMIT: LazyLock<Mutex<LogLimit>> = LazyLock::new(Mutex::default);
    LIMIT.lock().unwrap_or_else(PoisonError::into_inner).decide(client, Instant::now())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_client_gets_one_line_in_a_window_and_the_rest_is_counted() {
        let mut limit = LogLimit::default();
        let begin = Instant::now();
        let mut decide = |client, seconds| {
            let lines =
                limit.decide(&Client::Process { id: client, user: 0 }, begin + Duration::from_secs(seconds));
            (lines.own, lines.skipped)
        };
        assert_eq!(decide(1, 0), (true, 0));
        assert_eq!((decide(1, 1), decide(1, 59), decide(2, 59)), ((false, 0), (false, 0), (true, 0)));
        assert_eq!((decide(1, 60), decide(2, 60)), ((true, 2), (true, 0)));
    }

    #[test]
    fn many_clients_do_not_grow_the_table() {
        let mut limit = LogLimit::default();
        let now = Instant::now();
        let own =
            (0..100_000).filter(|client| limit.decide(&Client::Process { id: *client, user: 0 }, now).own);
        assert_eq!(own.count(), CLIENTS);
        assert_eq!(limit.clients.len(), CLIENTS);
    }
}
