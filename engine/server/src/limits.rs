//! Limits on the data that clients may send, and on the time that clients may take.

use std::time::Duration;

/// Limits of a server.
#[derive(Clone, Copy, Debug)]
pub struct ServerLimits {
    /// Maximum number of bytes of a request.
    pub request: usize,
    /// Maximum number of bytes of all waiting requests.
    pub waiting: usize,
    /// Maximum number of connections.
    pub connections: usize,
    /// Maximum number of connections from each IPv4 address, or from each IPv6 network (/64).
    pub connections_per_address: usize,
    /// Maximum idle time of a connection.
    pub idle: Duration,
    /// Maximum idle time of a TCP connection that has not yet sent a valid key or a valid request.
    pub idle_unauthenticated: Duration,
    /// Maximum time for which an answer may stay unread.
    pub stall: Duration,
    /// Time without a token after which the server sends a comment on a stream; zero for never.
    pub keep_alive: Duration,
    /// Maximum time for which running requests may continue after SIGTERM.
    pub drain: Duration,
}
