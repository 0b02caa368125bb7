//! Identity of the client that sends a request.

/// Client that a request belongs to, for fairness. Requests of one client wait for each other, but not for the
/// requests of other clients.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Client {
    /// Process connected to the Unix socket.
    Process {
        /// Process ID.
        id: i32,
        /// User ID of the process.
        user: u32,
    },
    /// Machine with this IP address.
    Machine(std::net::IpAddr),
    /// Client that cannot be identified.
    Unknown,
}

/// Account to which the bytes of waiting requests are charged. All processes of a user share one account, because a
/// user can start any number of processes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Account {
    /// User of the Unix socket, by user ID.
    User(u32),
    /// Machine with this IP address.
    Machine(std::net::IpAddr),
    /// Client that cannot be identified.
    Unknown,
}

impl Client {
    /// Returns the account to which the client's requests are charged.
    pub fn account(&self) -> Account {
        match self {
            Client::Process { user, .. } => Account::User(*user),
            Client::Machine(address) => Account::Machine(*address),
            Client::Unknown => Account::Unknown,
        }
    }
}
