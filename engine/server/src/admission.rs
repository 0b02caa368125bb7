//! Admission of connections: limits the number of open connections, and chooses the connection to evict for a new one.
//!
//! Each listener has its own [`Gate`], so that a flood over TCP never uses up the connections of the Unix socket. A
//! gate limits the total number of connections and the number per network (an IPv4 address, or the /64 of an IPv6
//! address). At a limit, a new connection replaces an inactive one:
//!
//! 1. First, the gate looks for a connection that has not [proven](ConnectionState::prove) itself. The gate picks the
//!    network with the most unproven connections and evicts the oldest connection of this network, so that recent
//!    connections of other networks survive.
//! 2. Otherwise, the gate evicts the proven connection that has been idle for longest.
//!
//! If the gate cannot evict any connection, the new connection becomes one of the [`RESERVE`] connections, which
//! serve only `/health`, `/metrics` and `/status`.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::metrics::Metrics;

/// Number of connections beyond the limit that may request `/health`, `/metrics` and `/status`.
pub const RESERVE: usize = 16;

/// Minimum time that a proven connection must be idle before it can be evicted. Its client may be about to send the
/// next request.
const LEAST_REST: Duration = Duration::from_secs(1);

/// Minimum time between two requests on an unproven TCP connection.
const LEAST_INTERVAL: Duration = Duration::from_millis(100);

/// Limits of a gate.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionBounds {
    /// Maximum number of connections.
    pub total: usize,
    /// Maximum number of connections per network.
    pub per_network: usize,
}

impl ConnectionBounds {
    /// No limits.
    pub const NONE: ConnectionBounds = ConnectionBounds { total: usize::MAX, per_network: usize::MAX };
}

/// Part of an address that identifies a client: all of an IPv4 address, or the first 64 bits of an IPv6 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Network {
    /// An IPv4 address.
    V4(Ipv4Addr),
    /// The first 64 bits of an IPv6 address.
    V6(u64),
}

impl From<IpAddr> for Network {
    fn from(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Network::V4(address),
            IpAddr::V6(address) => Network::V6((address.to_bits() >> 64) as u64),
        }
    }
}

/// Phase of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ConnectionPhase {
    /// Waiting for the first request head, or for the rest of a later head.
    Expecting,
    /// Reading a request body.
    Reading,
    /// Answering a request.
    Answering,
    /// Idle between requests.
    Resting,
}

/// Limit that a new connection exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// Total number of connections.
    Total,
    /// Number of connections of one network.
    Network,
}

/// Reason why a connection was evicted to make room for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evicted {
    /// The client had neither shown a valid key nor sent a valid request.
    Unproven,
    /// The connection was idle.
    Idle,
    /// The connection belonged to the reserve.
    Reserve,
}

/// Time limit that a client exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Late {
    /// Time limit for sending the head of a request.
    Head,
    /// Time limit for sending the body of a request.
    Body,
    /// Idle time between requests.
    Idle,
    /// Time limit for reading an answer.
    Write,
}

/// State of an open connection.
#[derive(Debug)]
pub struct ConnectionState {
    number: u64,
    network: Option<Network>,
    reserve: Option<Full>,
    opened: Instant,
    phase: AtomicU8,
    proven: AtomicBool,
    /// True while a write waits for the client.
    writing: AtomicBool,
    /// True if the body of the last request was not read completely.
    unread: AtomicBool,
    /// Time of the last phase change or write, in milliseconds after `opened`.
    active: AtomicU64,
    /// Earliest time at which the next request is answered without delay, in milliseconds after `opened`.
    due: AtomicU64,
    evicted: Notify,
    metrics: Arc<Metrics>,
}

impl ConnectionState {
    /// Returns the current phase.
    pub fn phase(&self) -> ConnectionPhase {
        match self.phase.load(Ordering::Relaxed) {
            0 => ConnectionPhase::Expecting,
            1 => ConnectionPhase::Reading,
            2 => ConnectionPhase::Answering,
            _ => ConnectionPhase::Resting,
        }
    }

    /// Changes the phase to `phase`.
    pub fn set(&self, phase: ConnectionPhase) {
        self.phase.store(phase as u8, Ordering::Relaxed);
        self.touch();
    }

    /// Records a write at the current time.
    pub fn touch(&self) {
        let active = u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.active.store(active, Ordering::Relaxed);
    }

    /// Records whether a write is waiting for the client. The write may be the end of an answer, so the connection
    /// must not be evicted meanwhile.
    pub fn set_writing(&self, writing: bool) {
        self.writing.store(writing, Ordering::Relaxed);
    }

    /// Records whether the request has a body that was not read completely.
    pub fn set_unread(&self, unread: bool) {
        self.unread.store(unread, Ordering::Relaxed);
    }

    /// True if the body of the last request was not read completely.
    pub fn is_unread(&self) -> bool {
        self.unread.load(Ordering::Relaxed)
    }

    /// True if the connection is idle and all its answers have been sent.
    fn is_idle(&self) -> bool {
        self.phase() == ConnectionPhase::Resting && !self.writing.load(Ordering::Relaxed)
    }

    /// Records that the client has shown a valid key or, if no key is needed, sent a valid request.
    pub fn prove(&self) {
        self.proven.store(true, Ordering::Relaxed);
    }

    /// True if the client has shown a valid key or sent a valid request.
    pub fn is_proven(&self) -> bool {
        self.proven.load(Ordering::Relaxed)
    }

    /// True if the short idle limit applies, because this is an unproven TCP connection.
    pub fn rests_shortly(&self) -> bool {
        self.network.is_some() && !self.is_proven()
    }

    /// Returns the delay for a request that has just arrived. Without a delay, thousands of simultaneous requests
    /// without a key would keep the connection thread busy.
    pub fn early(&self) -> Duration {
        if !self.rests_shortly() {
            return Duration::ZERO;
        }
        let now = self.opened.elapsed();
        let due = Duration::from_millis(self.due.load(Ordering::Relaxed)).max(now);
        let next = u64::try_from((due + LEAST_INTERVAL).as_millis()).unwrap_or(u64::MAX);
        self.due.store(next, Ordering::Relaxed);
        due - now
    }

    /// Returns the exceeded limit if the connection belongs to the reserve.
    pub fn reserve(&self) -> Option<Full> {
        self.reserve
    }

    /// Completes when the connection must make room for another.
    pub async fn evicted(&self) {
        self.evicted.notified().await;
    }

    /// Counts a client that exceeded the time limit `late`.
    pub fn was_late(&self, late: Late) {
        self.metrics.connections_timed_out[late as usize].add(1);
    }

    /// Counts a connection that was refused because of the limit `full`.
    pub fn was_refused(&self, full: Full) {
        self.metrics.connections_refused[full as usize].add(1);
    }

    fn rested(&self, now: Instant) -> Duration {
        let active = self.opened + Duration::from_millis(self.active.load(Ordering::Relaxed));
        now.saturating_duration_since(active)
    }
}

/// Open connections of a listener.
#[derive(Debug)]
pub struct Gate {
    metrics: Arc<Metrics>,
    next: AtomicU64,
    open: Mutex<Vec<Arc<ConnectionState>>>,
}

/// Admission of a connection. Dropping the admission frees the connection's place.
#[derive(Debug)]
pub struct Admitted {
    gate: Arc<Gate>,
    state: Arc<ConnectionState>,
}

impl Admitted {
    /// Returns the state of the connection.
    pub fn state(&self) -> &Arc<ConnectionState> {
        &self.state
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let number = self.state.number;
        self.gate.lock().retain(|state| state.number != number);
        self.gate.metrics.connections.sub_one();
    }
}

impl Gate {
    /// Creates a gate without connections that reports to `metrics`.
    pub fn new(metrics: &Arc<Metrics>) -> Self {
        Gate { metrics: Arc::clone(metrics), next: AtomicU64::new(0), open: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<ConnectionState>>> {
        // The list is valid even after a panic, because no call leaves it half changed.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admits a connection from `network`. `None` if the limit is reached and every connection of the reserve is
    /// busy.
    pub fn admit(self: &Arc<Self>, network: Option<Network>, bounds: ConnectionBounds) -> Option<Admitted> {
        let now = Instant::now();
        let mut open = self.lock();
        let reserve = match self.make_room(&mut open, network, bounds, now) {
            Ok(()) => None,
            Err(full) if self.make_room_in_reserve(&mut open) => Some(full),
            Err(full) => {
                self.metrics.connections_refused[full as usize].add(1);
                return None;
            }
        };
        let state = Arc::new(ConnectionState {
            number: self.next.fetch_add(1, Ordering::Relaxed),
            network,
            reserve,
            opened: now,
            phase: AtomicU8::new(ConnectionPhase::Expecting as u8),
            proven: AtomicBool::new(false),
            writing: AtomicBool::new(false),
            unread: AtomicBool::new(false),
            active: AtomicU64::new(0),
            due: AtomicU64::new(0),
            evicted: Notify::new(),
            metrics: Arc::clone(&self.metrics),
        });
        open.push(Arc::clone(&state));
        self.metrics.connections.add(1);
        Some(Admitted { gate: Arc::clone(self), state })
    }

    /// Makes room for another connection of `network`. Evicts a connection if a limit is reached.
    fn make_room(
        &self,
        open: &mut Vec<Arc<ConnectionState>>,
        network: Option<Network>,
        bounds: ConnectionBounds,
        now: Instant,
    ) -> Result<(), Full> {
        let ordinary = || open.iter().filter(|state| state.reserve.is_none());
        let own = || ordinary().filter(|state| network.is_some() && state.network == network);
        let victim = if own().count() >= bounds.per_network {
            Some(victim(own(), now).ok_or(Full::Network)?)
        } else if ordinary().count() >= bounds.total {
            Some(victim(ordinary(), now).ok_or(Full::Total)?)
        } else {
            None
        };
        if let Some((number, why)) = victim {
            self.evict(open, number, why);
        }
        Ok(())
    }

    fn make_room_in_reserve(&self, open: &mut Vec<Arc<ConnectionState>>) -> bool {
        let reserve = || open.iter().filter(|state| state.reserve.is_some());
        if reserve().count() < RESERVE {
            return true;
        }
        let Some(oldest) = reserve().find(|state| state.phase() != ConnectionPhase::Answering) else {
            return false;
        };
        let number = oldest.number;
        self.evict(open, number, Evicted::Reserve);
        true
    }

    /// Evicts connection number `number`, and frees its place immediately.
    fn evict(&self, open: &mut Vec<Arc<ConnectionState>>, number: u64, why: Evicted) {
        let Some(at) = open.iter().position(|state| state.number == number) else { return };
        // `swap_remove` would change the order of `open`, which is sorted by time of arrival.
        open.remove(at).evicted.notify_one();
        self.metrics.connections_evicted[why as usize].add(1);
    }
}

/// Chooses the connection to evict from `states`, which are sorted by time of arrival.
fn victim<'a>(
    states: impl Iterator<Item = &'a Arc<ConnectionState>> + Clone,
    now: Instant,
) -> Option<(u64, Evicted)> {
    let unproven =
        || states.clone().filter(|state| !state.is_proven() && state.phase() != ConnectionPhase::Answering);
    let mut counts: HashMap<Option<Network>, usize> = HashMap::new();
    for state in unproven() {
        *counts.entry(state.network).or_default() += 1;
    }
    let most = counts.values().copied().max();
    let oldest = unproven().find(|state| counts.get(&state.network).copied() == most);
    if let Some(state) = oldest {
        return Some((state.number, Evicted::Unproven));
    }
    let resting = states
        .filter(|state| state.is_idle())
        .map(|state| (state.rested(now), state.number))
        .filter(|(rested, _)| *rested >= LEAST_REST);
    resting.max().map(|(_, number)| (number, Evicted::Idle))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: ConnectionBounds = ConnectionBounds { total: 6, per_network: 4 };

    fn gate() -> (Arc<Gate>, Arc<Metrics>) {
        let metrics = Arc::new(Metrics::default());
        (Arc::new(Gate::new(&metrics)), metrics)
    }

    fn network(last: u8) -> Option<Network> {
        Some(Network::V4(Ipv4Addr::new(10, 0, 0, last)))
    }

    fn is_open(gate: &Gate, admitted: &Admitted) -> bool {
        gate.lock().iter().any(|state| state.number == admitted.state.number)
    }

    fn proven(gate: &Arc<Gate>, last: u8, phase: ConnectionPhase) -> Admitted {
        let admitted = gate.admit(network(last), BOUNDS).expect("a place");
        admitted.state.prove();
        admitted.state.set(phase);
        admitted
    }

    #[test]
    fn addresses_of_one_client_are_one_network() {
        let network = |text: &str| Network::from(text.parse::<IpAddr>().expect("an address"));
        assert_eq!(network("2001:db8:1:2::3"), network("2001:db8:1:2:ffff::4"));
        assert_ne!(network("2001:db8:1:2::3"), network("2001:db8:1:3::3"));
        assert_eq!(network("::ffff:10.0.0.1"), network("10.0.0.1"));
        assert_ne!(network("10.0.0.1"), network("10.0.0.2"));
    }

    #[test]
    fn a_flood_pushes_out_its_own_connections_first() {
        let (gate, metrics) = gate();
        let keyed = proven(&gate, 1, ConnectionPhase::Resting);
        let newcomer = gate.admit(network(2), BOUNDS).expect("a place");
        let flood: Vec<Admitted> =
            (0..20).map(|_| gate.admit(network(3), BOUNDS).expect("a place")).collect();
        let open: Vec<bool> = flood.iter().map(|admitted| is_open(&gate, admitted)).collect();
        assert_eq!(open.iter().filter(|open| **open).count(), 4, "the bound of a network: {open:?}");
        assert!(open[16..].iter().all(|open| *open), "the oldest go first: {open:?}");
        // All places are taken, so the network with the most connections loses a connection.
        let another = gate.admit(network(4), BOUNDS).expect("a place");
        assert!([&keyed, &newcomer, &another].iter().all(|admitted| is_open(&gate, admitted)));
        assert_eq!(metrics.connections_evicted[Evicted::Unproven as usize].get(), 17);
        assert_eq!(metrics.connections.get(), 23, "until their tasks end");
        drop(flood);
        assert_eq!(metrics.connections.get(), 3);
    }

    #[test]
    fn requests_without_a_key_that_come_together_wait_for_each_other() {
        let (gate, _) = gate();
        let admitted = gate.admit(network(1), BOUNDS).expect("a place");
        assert_eq!(admitted.state.early(), Duration::ZERO);
        let (second, third) = (admitted.state.early(), admitted.state.early());
        assert!(
            second <= LEAST_INTERVAL && third > second && third <= 2 * LEAST_INTERVAL,
            "{second:?}, {third:?}"
        );
        admitted.state.prove();
        assert_eq!(admitted.state.early(), Duration::ZERO);
    }

    #[tokio::test]
    async fn who_is_evicted_is_told() {
        let (gate, _) = gate();
        let bounds = ConnectionBounds { total: 1, per_network: 1 };
        let first = gate.admit(network(1), bounds).expect("a place");
        let _second = gate.admit(network(1), bounds).expect("a place");
        first.state.evicted().await;
    }

    #[test]
    fn answers_are_not_cut_and_the_reserve_is_left() {
        let (gate, metrics) = gate();
        let bounds = ConnectionBounds { total: 2, per_network: 2 };
        let (one, other) =
            (proven(&gate, 1, ConnectionPhase::Answering), proven(&gate, 2, ConnectionPhase::Reading));
        let probe = gate.admit(network(3), bounds).expect("a place of the reserve");
        assert_eq!(probe.state.reserve(), Some(Full::Total));
        let more: Vec<Admitted> =
            (0..40).map(|_| gate.admit(network(3), bounds).expect("a place of the reserve")).collect();
        assert!(!is_open(&gate, &probe) && is_open(&gate, &one) && is_open(&gate, &other));
        assert_eq!(metrics.connections_evicted[Evicted::Reserve as usize].get(), 41 - RESERVE as u64);
        more.iter().for_each(|admitted| admitted.state.set(ConnectionPhase::Answering));
        assert!(gate.admit(network(3), bounds).is_none());
        assert_eq!(metrics.connections_refused[Full::Total as usize].get(), 1);
    }

    #[test]
    fn a_proven_connection_goes_only_when_it_has_rested() {
        let (gate, metrics) = gate();
        let bounds = ConnectionBounds { total: 1, per_network: 1 };
        let _rested = proven(&gate, 1, ConnectionPhase::Resting);
        let newcomer = gate.admit(network(2), bounds).expect("a place");
        assert!(newcomer.state.reserve().is_some(), "its next request may be on its way");
        drop(newcomer);
        let later = Instant::now() + Duration::from_secs(2);
        let mut open = gate.lock();
        assert_eq!(gate.make_room(&mut open, network(2), bounds, later), Ok(()));
        assert!(open.is_empty());
        assert_eq!(metrics.connections_evicted[Evicted::Idle as usize].get(), 1);
    }
}
