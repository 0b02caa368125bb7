//! Values of the configuration, from the file or from flags.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use build_info::Bytes;
use engine_core::embed::Pooling;
use engine_core::settings::Requested;
use hub::Name;

use crate::drafts::Who;
use crate::log;
use crate::workloads::Workloads;

/// What is asked for, in the file or by flags; `None` where nothing is.
#[derive(Clone, Debug, Default, PartialEq)]
#[expect(missing_docs, reason = "each is explained in `KEYS`")]
pub struct Config {
    pub model: Option<PathBuf>,
    pub hf: Option<Name>,
    pub name: Option<String>,
    pub chat_template: Option<String>,
    pub socket: Option<PathBuf>,
    pub socket_group: Option<String>,
    pub listen: Option<SocketAddr>,
    pub health_listen: Option<SocketAddr>,
    pub metrics_without_key: Option<bool>,
    pub api_key_file: Option<PathBuf>,
    pub slots: Option<u32>,
    pub queue: Option<u32>,
    pub max_tokens: Option<u32>,
    pub timeout_s: Option<f64>,
    pub drain_s: Option<f64>,
    pub idle_s: Option<f64>,
    pub idle_unauthenticated_s: Option<f64>,
    pub stall_s: Option<f64>,
    pub step_ms: Option<u32>,
    pub prompt_reuse: Option<bool>,
    pub prompt_sharing: Option<bool>,
    pub embedding_pooling: Option<Pooling>,
    pub prompt_cache: Option<PathBuf>,
    pub prompt_cache_size: Option<Bytes>,
    pub prompt_cache_ro: Option<bool>,
    pub speculative: Option<Who>,
    pub draft_model: Option<PathBuf>,
    pub draft_p_min: Option<f32>,
    pub draft_max: Option<u32>,
    pub draft_near: Option<bool>,
    pub max_request_bytes: Option<u32>,
    pub max_waiting_bytes: Option<u32>,
    pub max_connections: Option<u32>,
    pub max_connections_per_address: Option<u32>,
    pub default_model: Option<String>,
    pub memory_limit: Option<Bytes>,
    pub pools: Option<u32>,
    /// Whether a model of `models` is loaded at the start.
    pub preload: Option<bool>,
    /// Models by name.
    pub models: BTreeMap<String, Config>,
    /// Threads by name.
    pub workloads: Workloads,
    pub log_format: Option<log::Format>,
    pub log_level: Option<log::Level>,
    pub log_prompts: Option<bool>,
    /// Settings of the engine.
    pub engine: Requested,
}
