//! Progress of the server's shutdown.

/// How far the end is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Closing {
    /// Jobs are taken.
    #[default]
    Open,
    /// What waits and runs is finished, nothing else is taken.
    Draining,
    /// Everything ends now.
    Now,
}
