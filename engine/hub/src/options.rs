//! Options of the hub client, and the progress callbacks.

use std::path::PathBuf;
use std::time::Duration;

/// Address of the hub if `HF_ENDPOINT` is not set.
pub const ENDPOINT: &str = "https://huggingface.co";

/// Limits on attempts and waiting times.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Maximum number of consecutive attempts that make no progress.
    pub tries: u32,
    /// Delay before the second attempt. Each further attempt doubles the delay.
    pub wait: Duration,
    /// Maximum time to wait for a connection, for a response, and for each read of its body.
    pub silence: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Patience { tries: 5, wait: Duration::from_secs(1), silence: Duration::from_secs(60) }
    }
}

/// Options that come from the environment and the command line.
#[derive(Clone, Debug)]
pub struct HubOptions {
    /// Address of the hub or of a mirror.
    pub endpoint: String,
    /// Folder of the cache.
    pub folder: PathBuf,
    /// Access token of the user, for private and gated models.
    pub token: Option<String>,
    /// True if a token exists but is not sent, because the connection to `endpoint` is not encrypted.
    pub token_withheld: bool,
    /// True if only the cache may be used.
    pub offline: bool,
    /// Limits on attempts and waiting times.
    pub patience: Patience,
}

/// Receives the progress of downloads.
pub trait Watch {
    /// Reports that the download of `file` begins. `on_disk` of its `total` bytes are already on disk.
    fn begin(&mut self, file: &str, on_disk: u64, total: u64);
    /// Reports that `done` bytes of the file are on disk.
    fn at(&mut self, done: u64);
    /// Reports that the file is complete.
    fn end(&mut self);
    /// Shows a message to the user.
    fn say(&mut self, words: &str);
}
