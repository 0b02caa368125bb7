//! Options of a server, as the configuration and the flags give them.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use build_info::Bytes;
use engine_core::cache::{PromptCacheRequest, Store};
use engine_core::embed::Pooling;
use engine_core::runtime_host::RuntimeHost;
use engine_core::settings::{Requested, Settings};
use llama::error::Result;

use super::limits::ServerLimits;
use super::request::Defaults;
use super::scheduler::rules::Rules;
use super::server::Current;
use super::workloads::Workloads;

/// How a model is served; what is of the server is the same for all models of it.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// The model's file.
    pub model: PathBuf,
    /// What clients call it.
    pub name: String,
    /// What makes a prompt of messages, a built-in template or a file; without it the model's own.
    pub chat_template: Option<String>,
    /// The Unix socket.
    pub socket: Option<PathBuf>,
    /// The group that may use it as well.
    pub group: Option<u32>,
    /// The TCP address.
    pub listen: Option<SocketAddr>,
    /// The TCP address for `/health` and `/metrics` alone.
    pub health_listen: Option<SocketAddr>,
    /// True if `/metrics` needs no key at `health_listen`.
    pub metrics_without_key: bool,
    /// Keys for requests over TCP.
    pub keys: Vec<String>,
    /// Requests that run at a time in each pool.
    pub slots: u32,
    /// Contexts, each on cores of its own.
    pub pools: u32,
    /// Threads by the names of what they are for.
    pub workloads: Workloads,
    /// Requests that wait.
    pub queue: usize,
    /// Most tokens to generate where a request says nothing.
    pub max_tokens: u32,
    /// How long a request may take.
    pub deadline: Duration,
    /// What may be asked.
    pub limits: ServerLimits,
    /// How the scheduler works.
    pub rules: Rules,
    /// Where prompts are kept on the disk.
    pub prompt_cache: Option<PromptCache>,
    /// True if clients share evaluated prompts.
    pub prompt_sharing: bool,
    /// The smaller model that drafts.
    pub draft_model: Option<DraftModelOptions>,
    /// Which tokens' embeddings a text's is made of; without it what the model says.
    pub embedding_pooling: Option<Pooling>,
}

/// A smaller model that drafts.
#[derive(Clone, Debug, PartialEq)]
pub struct DraftModelOptions {
    /// Its file.
    pub path: PathBuf,
    /// Least probability of a token that it drafts.
    pub least_p: f32,
}

/// A folder for prompts.
#[derive(Clone, Debug)]
pub struct PromptCache {
    /// The folder.
    pub folder: PathBuf,
    /// Most that it may take.
    pub bound: Bytes,
    /// Whether it is only read.
    pub read_only: bool,
}

impl PromptCache {
    pub(super) fn wanted(&self, model: &Path) -> Result<PromptCacheRequest> {
        PromptCacheRequest::new(Store::folder(&self.folder, self.bound, self.read_only)?, model)
    }
}

impl ServeOptions {
    /// What of it can be changed while the server runs.
    pub fn current(&self, engine: &Requested) -> Current {
        // Of the machine nothing is asked; what cannot be meant was refused before.
        let settings = Settings::resolve(engine, &RuntimeHost::default());
        Current {
            defaults: Defaults {
                sampling: settings.map(|settings| settings.sampling_options()).unwrap_or_default(),
                max_tokens: self.max_tokens,
                deadline: self.deadline,
                workloads: self.workloads.clone(),
                drafts: self.rules.drafts,
            },
            limits: self.limits,
            keys: self.keys.clone(),
            prompt_sharing: self.prompt_sharing,
        }
    }
}
