//! Options of a hub, and what is told while it works.

use std::path::PathBuf;
use std::time::Duration;

/// Where models are fetched from where nothing else is said.
pub const ENDPOINT: &str = "https://huggingface.co";

/// How long is waited.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Tries in a row that may bring nothing.
    pub tries: u32,
    /// Before the second try; doubled for each further one.
    pub wait: Duration,
    /// For an answer, and for each piece of it.
    pub silence: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Patience { tries: 5, wait: Duration::from_secs(1), silence: Duration::from_secs(60) }
    }
}

/// What the environment says of the hub.
#[derive(Clone, Debug)]
pub struct HubOptions {
    /// The hub or a mirror of it.
    pub endpoint: String,
    /// The cache.
    pub folder: PathBuf,
    /// The user's token, for models that not everyone may have.
    pub token: Option<String>,
    /// Whether there is a token that would go over a network unencrypted, and so is not used.
    pub token_withheld: bool,
    /// Whether only what is there is used.
    pub offline: bool,
    /// How long is waited.
    pub patience: Patience,
}

/// What is told while files are fetched.
pub trait Watch {
    /// A file of `total` bytes is about to be fetched, of which `there` bytes were fetched before.
    fn begin(&mut self, file: &str, there: u64, total: u64);
    /// So many bytes of it are there.
    fn at(&mut self, done: u64);
    /// The file is complete.
    fn end(&mut self);
    /// Something that the user should know.
    fn say(&mut self, words: &str);
}
