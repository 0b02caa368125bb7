//! Progress of the server's shutdown.

/// Stage of the shutdown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Closing {
    /// The server accepts requests.
    #[default]
    Open,
    /// The server finishes waiting and running requests, and refuses new ones.
    Draining,
    /// The server cancels all requests.
    Now,
}
