//! Memory limit for waiting requests. A request waits for the rest of its body, a model, its preparation or a slot.
//!
//! A request needs at most twelve times its size in memory plus a fixed allowance (`fields.rs`). A limit on the bytes
//! of all waiting requests therefore limits their memory.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::api_error::{ApiError, ApiErrorKind};
use super::client::{Account, Client};
use super::limits::ServerLimits;
use super::metrics::Metrics;

/// Divisor of the limit for one client: each client may use at most 1/`SHARE` of the limit.
const SHARE: usize = 2;

/// Number of bytes charged for each value of a JSON tree, in addition to the bytes of its text. A value needs at most
/// twelve times as much memory as is charged.
pub const VALUE_BYTES: usize = 40;

/// Budget for the bytes of all waiting requests.
#[derive(Debug)]
pub struct Budget {
    metrics: Arc<Metrics>,
    waiting: Mutex<Waiting>,
}

/// Bytes that are currently charged.
#[derive(Debug, Default)]
struct Waiting {
    /// Sum over all clients.
    total: usize,
    /// Sum for each client that has charges.
    clients: HashMap<Account, usize>,
}

/// Limits of a budget.
#[derive(Clone, Copy, Debug)]
pub struct ByteBounds {
    /// Maximum number of bytes of all waiting requests.
    pub waiting: usize,
    /// Maximum number of bytes of one request. A request of this size is always admitted if no other request waits.
    pub request: usize,
}

impl ByteBounds {
    /// Returns the limits of the budget in `limits`.
    pub fn of(limits: &ServerLimits) -> Self {
        ByteBounds { waiting: limits.waiting, request: limits.request }
    }
}

/// Bytes charged for one request. Dropping the charge returns the bytes to the budget.
#[derive(Debug)]
pub struct Charge {
    budget: Arc<Budget>,
    account: Account,
    bytes: usize,
}

/// Shared charge of a waiting request. Every part of the server that holds the request also holds its charge.
#[derive(Clone, Debug, Default)]
pub struct SharedCharge {
    /// Never read; dropping it ends the charge.
    _charge: Option<Arc<Charge>>,
}

impl PartialEq for SharedCharge {
    /// Always returns true, because a comparison of two requests ignores the charge.
    fn eq(&self, _: &SharedCharge) -> bool {
        true
    }
}

impl SharedCharge {
    /// Shares `charge`.
    pub fn new(charge: Charge) -> Self {
        SharedCharge { _charge: Some(Arc::new(charge)) }
    }
}

impl Budget {
    /// Creates an empty budget that counts into `metrics`.
    pub fn new(metrics: &Arc<Metrics>) -> Self {
        Budget { metrics: Arc::clone(metrics), waiting: Mutex::default() }
    }

    /// Starts a charge of zero bytes for a request of `client`.
    pub fn charge(self: &Arc<Self>, client: &Client) -> Charge {
        Charge { budget: Arc::clone(self), account: client.account(), bytes: 0 }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // The sums are consistent even after a panic, because no panic can occur between two changes.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Charge {
    /// Adds `more` bytes.
    ///
    /// # Errors
    /// An [`Overloaded`](ApiErrorKind::Overloaded) refusal if the requests of all clients, or of this client, would
    /// exceed `bounds`.
    pub fn grow(&mut self, more: usize, bounds: ByteBounds) -> Result<(), ApiError> {
        let mut waiting = self.budget.lock();
        let own = waiting.clients.get(&self.account).copied().unwrap_or(0);
        let all = waiting.total;
        let most = bounds.waiting.max(bounds.request);
        let share = (most / SHARE).max(bounds.request);
        let refused = |whose: &str, wait: usize, most: usize| {
            self.budget.metrics.refused.add(1);
            let message = format!(
                "the waiting requests {whose} total {wait} bytes, and adding this request would exceed the limit of \
                {most} bytes (max_waiting_bytes): try again later"
            );
            Err(ApiError { retry_after: Some(1), ..ApiError::new(ApiErrorKind::Overloaded, message) })
        };
        if all + more > most {
            return refused("of all clients", all - self.bytes.min(all), most);
        }
        if own + more > share {
            return refused("of this client", own - self.bytes.min(own), share);
        }
        *waiting.clients.entry(self.account.clone()).or_default() += more;
        waiting.total += more;
        self.bytes += more;
        self.budget.metrics.waiting_bytes.set(waiting.total as u64);
        Ok(())
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let mut waiting = self.budget.lock();
        if let Some(own) = waiting.clients.get_mut(&self.account) {
            *own = own.saturating_sub(self.bytes);
            if *own == 0 {
                waiting.clients.remove(&self.account);
            }
        }
        waiting.total = waiting.total.saturating_sub(self.bytes);
        self.budget.metrics.waiting_bytes.set(waiting.total as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_bounded_in_all_and_for_each_client() {
        let metrics = Arc::new(Metrics::default());
        let budget = Arc::new(Budget::new(&metrics));
        let bounds = ByteBounds { waiting: 100, request: 30 };
        let charge = |client, bytes| {
            let mut charge = budget.charge(&Client::Process { id: 1, user: client });
            charge.grow(bytes, bounds).map(|()| charge)
        };
        let first = charge(1, 30).expect("room");
        let refused = charge(1, 30).expect_err("a client may use only half of the limit");
        assert_eq!((refused.status(), refused.retry_after), (503, Some(1)));
        assert!(
            refused.message.contains("of this client total 30 bytes")
                && refused.message.contains("exceed the limit of 50 ")
        );
        let (second, third) = (charge(2, 50).expect("room"), charge(3, 20).expect("room"));
        let refused = charge(4, 1).expect_err("the whole limit is used");
        assert!(refused.message.contains("of all clients total 100 bytes"), "{}", refused.message);
        assert_eq!((metrics.waiting_bytes.get(), metrics.refused.get()), (100, 2));
        drop((first, second, third));
        assert_eq!(metrics.waiting_bytes.get(), 0);
        assert!(budget.lock().clients.is_empty());
        assert_eq!(budget.lock().total, 0);
    }

    #[test]
    fn processes_of_one_user_share_a_budget() {
        let budget = Arc::new(Budget::new(&Arc::new(Metrics::default())));
        let bounds = ByteBounds { waiting: 100, request: 30 };
        let mut held = Vec::new();
        for id in 1..=5 {
            let mut charge = budget.charge(&Client::Process { id, user: 7 });
            charge.grow(10, bounds).expect("a user may use half of the limit");
            held.push(charge);
        }
        let refused = budget
            .charge(&Client::Process { id: 6, user: 7 })
            .grow(10, bounds)
            .expect_err("the user's half is used");
        assert!(refused.message.contains("of this client total 50 bytes"), "{}", refused.message);
        budget.charge(&Client::Process { id: 7, user: 8 }).grow(10, bounds).expect("another user's half");
        assert_eq!(budget.lock().total, 50);
    }

    #[test]
    fn one_request_of_the_longest_is_always_let() {
        let budget = Arc::new(Budget::new(&Arc::new(Metrics::default())));
        let mut charge = budget.charge(&Client::Unknown);
        assert_eq!(charge.grow(30, ByteBounds { waiting: 10, request: 30 }), Ok(()));
    }
}
