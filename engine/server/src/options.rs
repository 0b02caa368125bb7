//! Resolved options of a server, combined from the configuration and the flags.

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
use super::origins::{AllowedHosts, AllowedOrigins};
use super::request::Defaults;
use super::scheduler::rules::Rules;
use super::server::Current;
use super::workloads::Workloads;

/// Options of a model. Options that belong to the server have the same value for all its models.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// Path of the model file.
    pub model: PathBuf,
    /// Name of the model for clients.
    pub name: String,
    /// Chat template: a built-in name or a file. `None` for the model's own template.
    pub chat_template: Option<String>,
    /// Path of the Unix socket.
    pub socket: Option<PathBuf>,
    /// ID of the group that may also use the socket.
    pub group: Option<u32>,
    /// TCP address.
    pub listen: Option<SocketAddr>,
    /// TCP address that serves only `/health` and `/metrics`.
    pub health_listen: Option<SocketAddr>,
    /// True if `/metrics` needs no key at `health_listen`.
    pub metrics_without_key: bool,
    /// API keys for requests over TCP.
    pub keys: Vec<String>,
    /// Origins of web pages that may use the server.
    pub origins: AllowedOrigins,
    /// Names by which clients may address the server.
    pub hosts: AllowedHosts,
    /// True if a request that names an unknown model gets the default model.
    pub accept_any_model: bool,
    /// Maximum number of concurrent requests in each pool.
    pub slots: u32,
    /// Number of pools. Each pool is a context with its own cores.
    pub pools: u32,
    /// Workloads by name.
    pub workloads: Workloads,
    /// Maximum number of waiting requests.
    pub queue: usize,
    /// Default maximum number of tokens to generate.
    pub max_tokens: u32,
    /// Default maximum number of thought tokens. `None` for no limit.
    pub reasoning_budget: Option<u32>,
    /// Maximum time of a request.
    pub deadline: Duration,
    /// Limits on clients.
    pub limits: ServerLimits,
    /// Rules of the scheduler.
    pub rules: Rules,
    /// Disk cache of prompts.
    pub prompt_cache: Option<PromptCache>,
    /// True if clients share evaluated prompts.
    pub prompt_sharing: bool,
    /// Draft model.
    pub draft_model: Option<DraftModelOptions>,
    /// Pooling of embeddings. `None` for the model's own pooling.
    pub embedding_pooling: Option<Pooling>,
}

/// Options of a draft model.
#[derive(Clone, Debug, PartialEq)]
pub struct DraftModelOptions {
    /// Path of the draft model's file.
    pub path: PathBuf,
    /// Minimum probability of a drafted token.
    pub least_p: f32,
}

/// Options of the disk cache of prompts.
#[derive(Clone, Debug)]
pub struct PromptCache {
    /// Folder of the cache.
    pub folder: PathBuf,
    /// Maximum size of the folder.
    pub bound: Bytes,
    /// True if the cache is never written.
    pub read_only: bool,
}

impl PromptCache {
    pub(super) fn wanted(&self, model: &Path) -> Result<PromptCacheRequest> {
        PromptCacheRequest::new(Store::folder(&self.folder, self.bound, self.read_only)?, model)
    }
}

impl ServeOptions {
    /// Returns the options that may change while the server runs.
    pub fn current(&self, engine: &Requested) -> Current {
        // These settings do not depend on the machine, and invalid values were already rejected.
        let settings = Settings::resolve(engine, &RuntimeHost::default());
        Current {
            defaults: Defaults {
                sampling: settings.map(|settings| settings.sampling_options()).unwrap_or_default(),
                max_tokens: self.max_tokens,
                reasoning_budget: self.reasoning_budget,
                deadline: self.deadline,
                workloads: self.workloads.clone(),
                drafts: self.rules.drafts,
            },
            limits: self.limits,
            keys: self.keys.clone(),
            origins: self.origins.clone(),
            hosts: self.hosts.clone(),
            accept_any_model: self.accept_any_model,
            prompt_sharing: self.prompt_sharing,
        }
    }
}
