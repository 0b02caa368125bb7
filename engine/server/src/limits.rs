//! Limits of what clients may send and how long they may take.

use std::time::Duration;

/// What may be asked of the server.
#[derive(Clone, Copy, Debug)]
pub struct ServerLimits {
    /// Bytes of a request.
    pub request: usize,
    /// Bytes of all requests that wait.
    pub waiting: usize,
    /// Connections at a time.
    pub connections: usize,
    /// Connections at a time of each IPv4 address, or of each /64 of IPv6.
    pub connections_per_address: usize,
    /// How long a connection may say nothing.
    pub idle: Duration,
    /// The same over TCP of one that has not shown a valid key, or sent nothing valid yet.
    pub idle_unauthenticated: Duration,
    /// How long a reader may be behind.
    pub stall: Duration,
    /// How long the end may take.
    pub drain: Duration,
}
