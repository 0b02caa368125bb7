//! Identity of the client that sends a request.

/// Whose a request is, for fairness: requests of one client wait for each other, not for those of another.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Client {
    /// A process at the Unix socket.
    Process {
        /// Its process ID.
        id: i32,
        /// User ID that it runs as.
        user: u32,
    },
    /// A machine at the TCP address.
    Machine(std::net::IpAddr),
    /// Nobody knows.
    Unknown,
}

/// Payer for the bytes of requests that wait. A user can start any number of processes, so they share one account.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Account {
    /// A user at the Unix socket, by user ID.
    User(u32),
    /// A machine at the TCP address.
    Machine(std::net::IpAddr),
    /// A client that the system does not identify.
    Unknown,
}

impl Client {
    /// Account that pays for the client's requests.
    pub fn account(&self) -> Account {
        match self {
            Client::Process { user, .. } => Account::User(*user),
            Client::Machine(address) => Account::Machine(*address),
            Client::Unknown => Account::Unknown,
        }
    }
}
