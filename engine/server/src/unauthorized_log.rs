//! Limit on log lines for requests without a valid key: at most one line per network per minute.
//!
//! Without this limit, anyone who can reach the address could fill the disk with log lines. The table is also
//! bounded: while it is full, all other networks share one row. A client with many IPv6 addresses therefore cannot
//! grow the table or cause more lines.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::admission::Network;

/// Minimum interval between two lines for a network.
const INTERVAL: Duration = Duration::from_secs(60);

/// Maximum number of networks in the table.
const MOST: usize = 256;

/// Time of the last line for a network, and the number of lines suppressed since then.
#[derive(Debug)]
struct NetworkRecord {
    logged: Instant,
    suppressed: u64,
}

/// Rows by network. `None` is the row that networks beyond [`MOST`] share.
#[derive(Debug, Default)]
struct RefusalTable(Option<HashMap<Option<Network>, NetworkRecord>>);

impl RefusalTable {
    /// Returns the number of suppressed lines since the last line for `network`, or `None` if no line is due at
    /// `now`.
    fn admit(&mut self, network: Network, now: Instant) -> Option<u64> {
        let rows = self.0.get_or_insert_default();
        if rows.len() >= MOST && !rows.contains_key(&Some(network)) {
            rows.retain(|key, row| key.is_none() || now.saturating_duration_since(row.logged) < INTERVAL);
        }
        let is_known = rows.contains_key(&Some(network));
        let key = (is_known || rows.len() < MOST).then_some(network);
        let Some(row) = rows.get_mut(&key) else {
            rows.insert(key, NetworkRecord { logged: now, suppressed: 0 });
            return Some(0);
        };
        if now.saturating_duration_since(row.logged) < INTERVAL {
            row.suppressed += 1;
            return None;
        }
        row.logged = now;
        Some(std::mem::take(&mut row.suppressed))
    }
}

static TABLE: Mutex<RefusalTable> = Mutex::new(RefusalTable(None));

/// Returns the number of suppressed lines since the last line for `network`, or `None` if no line is due now.
pub fn admit(network: Network) -> Option<u64> {
    TABLE.lock().unwrap_or_else(PoisonError::into_inner).admit(network, Instant::now())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_gets_a_line_a_minute_that_counts_the_others() {
        let (mut table, begin) = (RefusalTable::default(), Instant::now());
        let (one, other) = (Network::V6(1), Network::V6(2));
        assert_eq!(table.admit(one, begin), Some(0));
        for second in 1..60 {
            assert_eq!(table.admit(one, begin + Duration::from_secs(second)), None);
        }
        assert_eq!(table.admit(other, begin + Duration::from_secs(59)), Some(0));
        assert_eq!(table.admit(one, begin + INTERVAL), Some(59));
        assert_eq!(table.admit(one, begin + INTERVAL), None);
    }

    #[test]
    fn many_networks_neither_grow_the_table_nor_gain_lines() {
        let (mut table, begin) = (RefusalTable::default(), Instant::now());
        let lines =
            (0..100_000).filter(|network| table.admit(Network::V6(*network), begin).is_some()).count();
        assert_eq!(lines, MOST + 1);
        assert_eq!(table.0.as_ref().map(HashMap::len), Some(MOST + 1));
        // Rows older than the interval make room for new rows.
        assert_eq!(table.admit(Network::V6(200_000), begin + INTERVAL), Some(0));
        let rows = table.0.as_ref().map(HashMap::len).unwrap_or_default();
        assert!(rows <= MOST + 1, "{rows}");
    }
}
