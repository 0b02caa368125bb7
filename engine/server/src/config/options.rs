//! Options of the server: the requested values, and one table of flags, keys, ranges, defaults and help texts.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use build_info::Bytes;
use engine_core::embed::Pooling;
use engine_core::settings::{
    DefaultValue, Flag, Form, Group, Key, OptionSpec, Requested, Slot, Value, merge,
};
use engine_core::speculative::{DEFAULT_LEAST_P, DEFAULT_MOST, MOST};
use engine_core::{parsed, size, slot};
use hub::Name;
use llama::MAX_SEQUENCES;

use crate::address::not_an_address;
use crate::drafts::Who;
use crate::log;
use crate::origins::{AllowedHosts, AllowedOrigins};
use crate::workloads::Workloads;

/// Port in the hint for an address without a port.
const EXAMPLE_PORT: u16 = 8080;

/// Values that flags or the configuration file request. `None` means that a value was not requested.
#[derive(Clone, Debug, Default, PartialEq)]
#[expect(missing_docs, reason = "the table of options explains them")]
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
    pub reasoning_budget: Option<u32>,
    pub timeout_s: Option<f64>,
    pub drain_s: Option<f64>,
    pub idle_s: Option<f64>,
    pub idle_unauthenticated_s: Option<f64>,
    pub stall_s: Option<f64>,
    pub keep_alive_s: Option<f64>,
    pub step_ms: Option<u32>,
    pub prompt_reuse: Option<bool>,
    pub checkpoint_memory: Option<Bytes>,
    pub prompt_sharing: Option<bool>,
    pub allowed_origins: Option<AllowedOrigins>,
    pub allowed_hosts: Option<AllowedHosts>,
    pub accept_any_model: Option<bool>,
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
    /// True if the model is loaded at start-up. Used only in entries of `models`.
    pub preload: Option<bool>,
    /// Configurations of several models, by name.
    pub models: BTreeMap<String, Config>,
    /// Workloads by name.
    pub workloads: Workloads,
    pub log_format: Option<log::LogFormat>,
    pub log_level: Option<log::Level>,
    pub log_prompts: Option<bool>,
    /// Settings of the engine.
    pub engine: Requested,
}

impl Config {
    /// Copies values of `other` that are not set in this configuration, except `models` and `workloads`.
    pub(super) fn fill_from(&mut self, other: &Config) {
        merge(OPTIONS, self, other, |_, _| {});
        self.preload = self.preload.or(other.preload);
        self.engine = self.engine.or(&other.engine);
    }
}

/// Default number of requests that run at the same time.
pub(super) const DEFAULT_SLOTS: u32 = 4;

/// Default number of contexts per model.
pub(super) const DEFAULT_POOLS: u32 = 1;

/// Default maximum number of waiting requests.
pub(super) const DEFAULT_QUEUE: u32 = 64;

/// Default maximum number of tokens in an answer.
pub(super) const DEFAULT_MAX_TOKENS: u32 = 512;

/// Default time limit of a request, in seconds.
pub(super) const DEFAULT_TIMEOUT_S: f64 = 600.0;

/// Default time for running requests after SIGTERM, in seconds.
pub(super) const DEFAULT_DRAIN_S: f64 = 30.0;

/// Default delay that prompts may add between two tokens, in milliseconds.
pub(super) const DEFAULT_STEP_MS: u32 = 250;

/// Default idle time after which a connection is closed, in seconds.
pub(super) const DEFAULT_IDLE_S: f64 = 300.0;

/// Default idle time after which a connection without a valid key is closed, in seconds.
pub(super) const DEFAULT_IDLE_UNAUTHENTICATED_S: f64 = 5.0;

/// Default time for which an answer may stay unread, in seconds.
pub(super) const DEFAULT_STALL_S: f64 = 30.0;
pub(super) const DEFAULT_KEEP_ALIVE_S: f64 = 10.0;

/// Default maximum size of a request, in bytes.
pub(super) const DEFAULT_REQUEST_BYTES: u32 = 8 << 20;

/// Default maximum size of all waiting requests, in bytes.
pub(super) const DEFAULT_WAITING_BYTES: u32 = 64 << 20;

/// Default maximum number of connections.
pub(super) const DEFAULT_CONNECTIONS: u32 = 512;

/// Default maximum number of connections per address.
pub(super) const DEFAULT_CONNECTIONS_PER_ADDRESS: u32 = 256;

/// Maximum number of contexts per model.
pub(super) const MAX_POOLS: u32 = 64;

const WEEK_S: f64 = 7.0 * 86_400.0;
const SECONDS: &str = "0 to 604800 seconds";

/// All options of the server, in the order of the help text and of the printed configuration.
#[rustfmt::skip]
pub static OPTIONS: &[OptionSpec<Config>] = &[
    OptionSpec {
        name: "model", flag: Flag::None, key: Key::SERVER, group: Group::Model,
        default: DefaultValue::depends("none", "\"model.gguf\""),
        help: "GGUF file. A relative path is relative to the folder that contains the configuration file",
        value: Value::Path(|all, path| all.model = Some(path)),
        slot: Slot {
            // Both `model` and `hf` set the model.
            is_set: |all| all.model.is_some() || all.hf.is_some(),
            copy: |own, other| {
                own.model.clone_from(&other.model);
                own.hf.clone_from(&other.hf);
            },
        },
    },
    OptionSpec {
        name: "hf", flag: Flag::None, key: Key::MODEL, group: Group::Model,
        default: DefaultValue::depends("none", "\"owner/repo:Q4_K_M\""),
        help: "Model on the Hugging Face hub, written as for --hf, instead of `model`; downloaded at start-up if it \
               is not in the cache",
        value: Value::Text(Form::Word, parsed!(hf)),
        slot: Slot {
            // Both `model` and `hf` set the model.
            is_set: |all| all.model.is_some() || all.hf.is_some(),
            copy: |own, other| {
                own.model.clone_from(&other.model);
                own.hf.clone_from(&other.hf);
            },
        },
    },
    OptionSpec {
        name: "name", flag: Flag::value("NAME"), key: Key::SERVER, group: Group::Model,
        default: DefaultValue::depends("the file name without extension", "\"model\""),
        help: "Model name that clients see",
        value: Value::Text(Form::Word, parsed!(name)),
        slot: slot!(name),
    },
    OptionSpec {
        name: "chat-template", flag: Flag::value("NAME|FILE"), key: Key::MODEL, group: Group::Model,
        default: DefaultValue::depends("the model's", "\"chatml\""),
        help: "Chat template to use instead of the model's: chatml, gemma, llama3, mistral, plain, or a Jinja file",
        value: Value::Text(Form::Word, parsed!(chat_template)),
        slot: slot!(chat_template),
    },
    OptionSpec {
        name: "default-model", flag: Flag::None, key: Key::SERVER.reloaded(), group: Group::Model,
        default: DefaultValue::depends("the model set by `model`; if `model` is not set, every request must specify a \
                                        model", "\"model\""),
        help: "Model for requests that do not specify a model, if several models are configured",
        value: Value::Text(Form::Word, parsed!(default_model)),
        slot: slot!(default_model),
    },
    OptionSpec {
        name: "accept-any-model", flag: Flag::None, key: Key::SERVER.reloaded(), group: Group::Model,
        default: DefaultValue::Truth(false),
        help: "Answer requests that name an unknown model with the default model, for clients whose model names cannot \
               be changed",
        value: Value::Truth(|all, value| all.accept_any_model = Some(value)),
        slot: slot!(accept_any_model),
    },
    OptionSpec {
        name: "memory-limit", flag: Flag::None, key: Key::SERVER.reloaded(), group: Group::Model,
        default: DefaultValue::depends("the free memory, if several models are configured", "\"24GiB\""),
        help: "Maximum total memory of all loaded models, estimated from weights and contexts",
        value: Value::Text(Form::Word, |all, text| {
            all.memory_limit = Some(size::parse(text)?);
            Ok(())
        }),
        slot: slot!(memory_limit),
    },
    OptionSpec {
        name: "socket", flag: Flag::value("PATH"), key: Key::SERVER, group: Group::Listening,
        default: DefaultValue::depends("$XDG_RUNTIME_DIR/anneal/anneal.sock without --listen", "\"/run/user/1000/anneal/anneal.sock\""),
        help: "Unix socket for the line protocol and for HTTP",
        value: Value::Path(|all, path| all.socket = Some(path)),
        slot: slot!(socket),
    },
    OptionSpec {
        name: "socket-group", flag: Flag::value("GROUP"), key: Key::SERVER, group: Group::Listening,
        default: DefaultValue::depends("no group, so only this user", "\"users\""),
        help: "Group that may also use the socket",
        value: Value::Text(Form::Word, parsed!(socket_group)),
        slot: slot!(socket_group),
    },
    OptionSpec {
        name: "listen", flag: Flag::value("ADDRESS"), key: Key::SERVER, group: Group::Listening,
        default: DefaultValue::depends("none", "\"127.0.0.1:8080\""),
        help: "Address for HTTP, for example 127.0.0.1:8080; an address that other machines can reach needs \
              --api-key-file",
        value: Value::Text(Form::Word, |all, text| {
            all.listen = Some(address(text)?);
            Ok(())
        }),
        slot: slot!(listen),
    },
    OptionSpec {
        name: "health-listen", flag: Flag::value("ADDRESS"), key: Key::SERVER, group: Group::Listening,
        default: DefaultValue::depends("none", "\"127.0.0.1:8081\""),
        help: "Separate address for GET /health and GET /metrics, with its own connection limit",
        value: Value::Text(Form::Word, |all, text| {
            all.health_listen = Some(address(text)?);
            Ok(())
        }),
        slot: slot!(health_listen),
    },
    OptionSpec {
        name: "metrics-without-key", flag: Flag::None, key: Key::SERVER, group: Group::Listening,
        default: DefaultValue::Truth(false),
        help: "Serve /metrics at --health-listen without a key",
        value: Value::Truth(|all, value| all.metrics_without_key = Some(value)),
        slot: slot!(metrics_without_key),
    },
    OptionSpec {
        name: "api-key-file", flag: Flag::value("FILE"), key: Key::SERVER.reloaded(), group: Group::Listening,
        default: DefaultValue::depends("none", "\"api-keys\""),
        help: "File with one key per line; requests over TCP need one of the keys",
        value: Value::Path(|all, path| all.api_key_file = Some(path)),
        slot: slot!(api_key_file),
    },
    OptionSpec {
        name: "max-connections", flag: Flag::None, key: Key::SERVER, group: Group::Listening,
        default: DefaultValue::Number(DEFAULT_CONNECTIONS as f64),
        help: "Maximum number of connections to the socket, and separately to the address (at the limit, a new \
              connection replaces an idle one)",
        value: Value::Whole { least: 1, most: 65_536, range: "1 to 65536", set: |all, value| all.max_connections = Some(value) },
        slot: slot!(max_connections),
    },
    OptionSpec {
        name: "max-connections-per-address", flag: Flag::None, key: Key::SERVER.reloaded(), group: Group::Listening,
        default: DefaultValue::Number(DEFAULT_CONNECTIONS_PER_ADDRESS as f64),
        help: "Maximum number of TCP connections from one IPv4 address, or from one IPv6 network (/64)",
        value: Value::Whole { least: 1, most: 65_536, range: "1 to 65536", set: |all, value| all.max_connections_per_address = Some(value) },
        slot: slot!(max_connections_per_address),
    },
    OptionSpec {
        name: "max-request-bytes", flag: Flag::None, key: Key::SERVER.reloaded(), group: Group::Listening,
        default: DefaultValue::Number(DEFAULT_REQUEST_BYTES as f64),
        help: "Maximum size of a request, in bytes",
        value: Value::Whole { least: 1024, most: 1 << 30, range: "1024 to 1073741824", set: |all, value| all.max_request_bytes = Some(value) },
        slot: slot!(max_request_bytes),
    },
    OptionSpec {
        name: "max-waiting-bytes", flag: Flag::None, key: Key::SERVER.reloaded(), group: Group::Listening,
        default: DefaultValue::Number(DEFAULT_WAITING_BYTES as f64),
        help: "Maximum total size, in bytes, of requests that wait for the rest of their body, a model or a slot \
              (each client may use at most half of this size, but a single request is always accepted)",
        value: Value::Whole { least: 1024, most: u32::MAX, range: "1024 to 4294967295", set: |all, value| all.max_waiting_bytes = Some(value) },
        slot: slot!(max_waiting_bytes),
    },
    OptionSpec {
        name: "idle", flag: Flag::None, key: Key::SERVER.named("idle_s").reloaded(), group: Group::Listening,
        default: DefaultValue::Number(DEFAULT_IDLE_S),
        help: "Time without a request after which a connection is closed (the first request must begin within 10 \
              seconds)",
        value: Value::Number { least: 0.0, most: WEEK_S, range: SECONDS, set: |all, value| all.idle_s = Some(value) },
        slot: slot!(idle_s),
    },
    OptionSpec {
        name: "idle-unauthenticated", flag: Flag::None, key: Key::SERVER.named("idle_unauthenticated_s").reloaded(), group: Group::Listening,
        default: DefaultValue::Number(DEFAULT_IDLE_UNAUTHENTICATED_S),
        help: "Like idle_s, but for TCP clients that have not yet sent a valid key (or, if the server has no keys, a valid \
              request other than /health)",
        value: Value::Number { least: 0.0, most: WEEK_S, range: SECONDS, set: |all, value| all.idle_unauthenticated_s = Some(value) },
        slot: slot!(idle_unauthenticated_s),
    },
    OptionSpec {
        name: "stall", flag: Flag::None, key: Key::SERVER.named("stall_s").reloaded(), group: Group::Listening,
        default: DefaultValue::Number(DEFAULT_STALL_S),
        help: "Time for which an answer may stay unread before the request is cancelled",
        value: Value::Number { least: 0.0, most: WEEK_S, range: SECONDS, set: |all, value| all.stall_s = Some(value) },
        slot: slot!(stall_s),
    },
    OptionSpec {
        name: "allowed-origins", flag: Flag::None, key: Key::SERVER.reloaded(), group: Group::Listening,
        default: DefaultValue::depends("none", "\"\""),
        help: "Origins of web pages that may use the server, separated by commas; \"*\" allows all pages and needs API \
               keys",
        value: Value::Text(Form::Word, parsed!(allowed_origins)),
        slot: slot!(allowed_origins),
    },
    OptionSpec {
        name: "allowed-hosts", flag: Flag::None, key: Key::SERVER.reloaded(), group: Group::Listening,
        default: DefaultValue::depends("none", "\"\""),
        help: "Host names by which requests without a key may address the server, in addition to localhost and IP \
               addresses; separated by commas",
        value: Value::Text(Form::Word, parsed!(allowed_hosts)),
        slot: slot!(allowed_hosts),
    },
    OptionSpec {
        name: "keep-alive", flag: Flag::None, key: Key::SERVER.named("keep_alive_s").reloaded(), group: Group::Listening,
        default: DefaultValue::Number(DEFAULT_KEEP_ALIVE_S),
        help: "Time after which the server sends a comment on an HTTP stream if it has sent nothing else, so that proxies \
              and clients keep the connection open (0 for never)",
        value: Value::Number { least: 0.0, most: WEEK_S, range: SECONDS, set: |all, value| all.keep_alive_s = Some(value) },
        slot: slot!(keep_alive_s),
    },
    OptionSpec {
        name: "slots", flag: Flag::aliased("N", &["parallel"]), key: Key::MODEL, group: Group::Requests,
        default: DefaultValue::Number(DEFAULT_SLOTS as f64),
        help: "Maximum number of concurrent requests that share the context",
        value: Value::Whole { least: 1, most: MAX_SEQUENCES, range: "1 to 256", set: |all, value| all.slots = Some(value) },
        slot: slot!(slots),
    },
    OptionSpec {
        name: "pools", flag: Flag::None, key: Key::MODEL, group: Group::Requests,
        default: DefaultValue::Number(DEFAULT_POOLS as f64),
        help: "Number of contexts of the model (each context has its own slots and cores; all contexts share the \
              weights)",
        value: Value::Whole { least: 1, most: MAX_POOLS, range: "1 to 64", set: |all, value| all.pools = Some(value) },
        slot: slot!(pools),
    },
    OptionSpec {
        name: "queue", flag: Flag::value("N"), key: Key::MODEL.reloaded(), group: Group::Requests,
        default: DefaultValue::Number(DEFAULT_QUEUE as f64),
        help: "Maximum number of waiting requests (further requests are refused with status 429)",
        value: Value::Whole { least: 0, most: 1 << 20, range: "0 or more", set: |all, value| all.queue = Some(value) },
        slot: slot!(queue),
    },
    OptionSpec {
        name: "max-tokens", flag: Flag::value("N"), key: Key::MODEL.reloaded(), group: Group::Requests,
        default: DefaultValue::Number(DEFAULT_MAX_TOKENS as f64),
        help: "Maximum number of tokens in an answer, for requests without max_tokens",
        value: Value::Whole { least: 1, most: u32::MAX, range: "1 or more", set: |all, value| all.max_tokens = Some(value) },
        slot: slot!(max_tokens),
    },
    OptionSpec {
        name: "reasoning-budget", flag: Flag::value("N"), key: Key::MODEL.reloaded(), group: Group::Requests,
        default: DefaultValue::depends("no limit", "2048"),
        help: "Maximum number of thought tokens before an answer, for requests without a budget (0 ends thoughts \
              immediately)",
        value: Value::Whole { least: 0, most: u32::MAX, range: "0 or more", set: |all, value| all.reasoning_budget = Some(value) },
        slot: slot!(reasoning_budget),
    },
    OptionSpec {
        name: "timeout", flag: Flag::value("S"), key: Key::MODEL.named("timeout_s").reloaded(), group: Group::Requests,
        default: DefaultValue::Number(DEFAULT_TIMEOUT_S),
        help: "Time limit for a request, including waiting (a request may set a shorter limit)",
        value: Value::Number { least: 0.0, most: WEEK_S, range: SECONDS, set: |all, value| all.timeout_s = Some(value) },
        slot: slot!(timeout_s),
    },
    OptionSpec {
        name: "drain", flag: Flag::value("S"), key: Key::SERVER.named("drain_s").reloaded(), group: Group::Requests,
        default: DefaultValue::Number(DEFAULT_DRAIN_S),
        help: "Time for which running requests may continue after SIGTERM",
        value: Value::Number { least: 0.0, most: WEEK_S, range: SECONDS, set: |all, value| all.drain_s = Some(value) },
        slot: slot!(drain_s),
    },
    OptionSpec {
        name: "step-ms", flag: Flag::None, key: Key::MODEL.reloaded(), group: Group::Requests,
        default: DefaultValue::Number(DEFAULT_STEP_MS as f64),
        help: "Maximum delay, in milliseconds, that evaluating prompts adds to the next token of other requests \
              (smaller values give smoother output, and larger values give more throughput). If more slots read \
              prompts than generate, the delay can be up to four times as long",
        value: Value::Whole { least: 1, most: 60_000, range: "1 to 60000", set: |all, value| all.step_ms = Some(value) },
        slot: slot!(step_ms),
    },
    OptionSpec {
        name: "prompt-reuse", flag: Flag::None, key: Key::MODEL.reloaded(), group: Group::Requests,
        default: DefaultValue::Truth(true),
        help: "Keep evaluated prompts for later prompts with the same prefix",
        value: Value::Truth(|all, value| all.prompt_reuse = Some(value)),
        slot: slot!(prompt_reuse),
    },
    OptionSpec {
        name: "checkpoint-memory", flag: Flag::None, key: Key::MODEL.reloaded(), group: Group::Requests,
        default: DefaultValue::Text("1GiB"),
        help: "Maximum memory for checkpoints of prompts, in each pool. Models with recurrent states need checkpoints to \
              reuse part of a prompt. The least recently used checkpoints are dropped first",
        value: Value::Text(Form::Word, |all, text| {
            all.checkpoint_memory = Some(size::parse(text)?);
            Ok(())
        }),
        slot: slot!(checkpoint_memory),
    },
    OptionSpec {
        name: "prompt-sharing", flag: Flag::Switch, key: Key::SERVER.reloaded(), group: Group::Requests,
        default: DefaultValue::Truth(false),
        help: "Let all clients share evaluated prompts. A client can then find out other clients' prompts",
        value: Value::Truth(|all, value| all.prompt_sharing = Some(value)),
        slot: slot!(prompt_sharing),
    },
    OptionSpec {
        name: "embedding-pooling", flag: Flag::None, key: Key::MODEL, group: Group::Requests,
        default: DefaultValue::depends("the model's, else mean", "\"mean\""),
        help: "Method for combining token vectors into one embedding: mean, first or last",
        value: Value::Text(Form::Word, parsed!(embedding_pooling)),
        slot: slot!(embedding_pooling),
    },
    OptionSpec {
        name: "prompt-cache", flag: Flag::value("DIR"), key: Key::MODEL, group: Group::PromptCache,
        default: DefaultValue::depends("none", "\"prompt-cache\""),
        help: "Folder in which evaluated prompts are stored when no slot has room for them",
        value: Value::Path(|all, path| all.prompt_cache = Some(path)),
        slot: slot!(prompt_cache),
    },
    OptionSpec {
        name: "prompt-cache-size", flag: Flag::value("SIZE"), key: Key::MODEL, group: Group::PromptCache,
        default: DefaultValue::Text("2GiB"),
        help: "Maximum size of the prompt cache, for example 500MiB; the least recently used prompts are deleted \
              first",
        value: Value::Text(Form::Word, |all, text| {
            all.prompt_cache_size = Some(size::parse(text)?);
            Ok(())
        }),
        slot: slot!(prompt_cache_size),
    },
    OptionSpec {
        name: "prompt-cache-ro", flag: Flag::Switch, key: Key::MODEL, group: Group::PromptCache,
        default: DefaultValue::Truth(false),
        help: "Read the prompt cache, but never write to it",
        value: Value::Truth(|all, value| all.prompt_cache_ro = Some(value)),
        slot: slot!(prompt_cache_ro),
    },
    OptionSpec {
        name: "speculative", flag: Flag::value("HOW"), key: Key::MODEL, group: Group::Drafts,
        default: DefaultValue::depends("off, or model with --draft-model", "\"off\""),
        help: "Speculative decoding: off, asked (only requests that ask for it), lookup (drafts from the text \
              itself) or model (drafts from --draft-model); a request can override lookup and model",
        value: Value::Text(Form::Word, parsed!(speculative)),
        slot: slot!(speculative),
    },
    OptionSpec {
        name: "draft-model", flag: Flag::aliased("FILE", &["model-draft"]), key: Key::MODEL, group: Group::Drafts,
        default: DefaultValue::depends("none", "\"small.gguf\""),
        help: "Draft model: a smaller model with the same vocabulary",
        value: Value::Path(|all, path| all.draft_model = Some(path)),
        slot: slot!(draft_model),
    },
    OptionSpec {
        name: "draft-p-min", flag: Flag::value("P"), key: Key::MODEL, group: Group::Drafts,
        default: DefaultValue::Number(DEFAULT_LEAST_P as f64),
        help: "Minimum probability at which the draft model proposes a token",
        value: Value::Number { least: 0.0, most: 1.0, range: "0 to 1", set: |all, value| all.draft_p_min = Some(value as f32) },
        slot: slot!(draft_p_min),
    },
    OptionSpec {
        name: "draft-max", flag: Flag::value("N"), key: Key::MODEL, group: Group::Drafts,
        default: DefaultValue::Number(DEFAULT_MOST as f64),
        help: "Maximum number of tokens in a draft",
        value: Value::Whole { least: 1, most: MOST, range: "1 to 15", set: |all, value| all.draft_max = Some(value) },
        slot: slot!(draft_max),
    },
    OptionSpec {
        name: "draft-near", flag: Flag::Switch, key: Key::MODEL, group: Group::Drafts,
        default: DefaultValue::Truth(false),
        help: "Use drafts even if evaluating several tokens together rounds logits differently from evaluating one \
              token at a time. If two tokens are nearly equally likely, the text may differ from the text \
              without drafts",
        value: Value::Truth(|all, value| all.draft_near = Some(value)),
        slot: slot!(draft_near),
    },
    OptionSpec {
        name: "log-format", flag: Flag::value("FORMAT"), key: Key::SERVER, group: Group::Log,
        default: DefaultValue::depends("no log, unless --log-level is given", "\"text\""),
        help: "Log to stderr in this format: text or json",
        value: Value::Text(Form::Word, parsed!(log_format)),
        slot: slot!(log_format),
    },
    OptionSpec {
        name: "log-level", flag: Flag::value("LEVEL"), key: Key::SERVER, group: Group::Log,
        default: DefaultValue::depends("info, if --log-format is given", "\"info\""),
        help: "Log to stderr at this level: error, warn, info (a line for each finished request), debug (also \
              llama.cpp's messages) or trace. Prompts and answers are not logged; see log_prompts",
        value: Value::Text(Form::Word, parsed!(log_level)),
        slot: slot!(log_level),
    },
    OptionSpec {
        name: "log-prompts", flag: Flag::None, key: Key::SERVER, group: Group::Log,
        default: DefaultValue::Truth(false),
        help: "Log prompts and answers; without this option, the log contains no text from clients",
        value: Value::Truth(|all, value| all.log_prompts = Some(value)),
        slot: slot!(log_prompts),
    },
];

/// Parses the address of a TCP socket.
///
/// # Errors
/// If `text` is not an IP address with a port. The hint completes a port or an address.
fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| not_an_address::<IpAddr>(text, "an IP address", EXAMPLE_PORT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_address_is_completed() {
        let cases = [
            ("8080", "127.0.0.1:8080"),
            (":9090", "127.0.0.1:9090"),
            ("localhost:9090", "127.0.0.1:9090"),
            ("localhost", "127.0.0.1:8080"),
            ("0.0.0.0", "0.0.0.0:8080"),
            ("::1", "[::1]:8080"),
            ("box:80", "127.0.0.1:8080"),
        ];
        for (text, expected) in cases {
            let why = address(text).expect_err(text);
            assert!(why.ends_with(&format!("\nhint: use an address such as {expected}")), "{text}: {why}");
        }
        assert_eq!(address("[::1]:80"), Ok(SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], 80))));
    }
}
