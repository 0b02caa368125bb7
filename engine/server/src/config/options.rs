//! Options of the server: the values that were asked for, and one table of flags, keys, ranges, defaults and help texts.

use std::collections::BTreeMap;
use std::net::SocketAddr;
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

use crate::drafts::Who;
use crate::log;
use crate::workloads::Workloads;

/// Values that were asked for by flags or in the configuration file; `None` where nothing was.
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
    /// True if a model of `models` is loaded at the start.
    pub preload: Option<bool>,
    /// Models by name.
    pub models: BTreeMap<String, Config>,
    /// Threads by name.
    pub workloads: Workloads,
    pub log_format: Option<log::LogFormat>,
    pub log_level: Option<log::Level>,
    pub log_prompts: Option<bool>,
    /// Settings of the engine.
    pub engine: Requested,
}

impl Config {
    /// Stores every value of `other` that this lacks, except `models` and `workloads`.
    pub(super) fn fill_from(&mut self, other: &Config) {
        merge(OPTIONS, self, other, |_, _| {});
        self.preload = self.preload.or(other.preload);
        self.engine = self.engine.or(&other.engine);
    }
}

/// Requests that run at a time where nothing is asked for.
pub(super) const DEFAULT_SLOTS: u32 = 4;

/// Contexts of a model where nothing is asked for.
pub(super) const DEFAULT_POOLS: u32 = 1;

/// Requests that wait at most where nothing is asked for.
pub(super) const DEFAULT_QUEUE: u32 = 64;

/// Tokens of an answer at most where nothing is asked for.
pub(super) const DEFAULT_MAX_TOKENS: u32 = 512;

/// Seconds that a request may take where nothing is asked for.
pub(super) const DEFAULT_TIMEOUT_S: f64 = 600.0;

/// Seconds for running requests after SIGTERM where nothing is asked for.
pub(super) const DEFAULT_DRAIN_S: f64 = 30.0;

/// Milliseconds that prompts may add between two tokens where nothing is asked for.
pub(super) const DEFAULT_STEP_MS: u32 = 250;

/// Seconds without a request before a connection ends where nothing is asked for.
pub(super) const DEFAULT_IDLE_S: f64 = 300.0;

/// The same for a client without a valid key.
pub(super) const DEFAULT_IDLE_UNAUTHENTICATED_S: f64 = 5.0;

/// Seconds for which an answer may stay unread where nothing is asked for.
pub(super) const DEFAULT_STALL_S: f64 = 30.0;

/// Bytes of a request at most where nothing is asked for.
pub(super) const DEFAULT_REQUEST_BYTES: u32 = 8 << 20;

/// Bytes of all waiting requests at most where nothing is asked for.
pub(super) const DEFAULT_WAITING_BYTES: u32 = 64 << 20;

/// Connections at most where nothing is asked for.
pub(super) const DEFAULT_CONNECTIONS: u32 = 512;

/// Connections of one address at most where nothing is asked for.
pub(super) const DEFAULT_CONNECTIONS_PER_ADDRESS: u32 = 256;

/// Contexts of a model at most.
pub(super) const MAX_POOLS: u32 = 64;

const WEEK_S: f64 = 7.0 * 86_400.0;
const SECONDS: &str = "seconds from 0 to 604800";

/// Every option of the server, in the order of help texts and of the printed configuration.
#[rustfmt::skip]
pub static OPTIONS: &[OptionSpec<Config>] = &[
    OptionSpec {
        name: "model", flag: Flag::None, key: Key::SERVER, group: Group::Model,
        default: DefaultValue::depends("none", "\"model.gguf\""),
        help: "GGUF file. A relative path starts at this file's folder",
        value: Value::Path(|all, path| all.model = Some(path)),
        slot: Slot {
            // One of the two names a model.
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
        help: "Model on the Hugging Face hub, in place of model, as for --hf. It is fetched at the start if it is not on the disk",
        value: Value::Text(Form::Word, parsed!(hf)),
        slot: Slot {
            // One of the two names a model.
            is_set: |all| all.model.is_some() || all.hf.is_some(),
            copy: |own, other| {
                own.model.clone_from(&other.model);
                own.hf.clone_from(&other.hf);
            },
        },
    },
    OptionSpec {
        name: "name", flag: Flag::value("NAME"), key: Key::SERVER, group: Group::Model,
        default: DefaultValue::depends("its file's name", "\"model\""),
        help: "Name of the model for clients",
        value: Value::Text(Form::Word, parsed!(name)),
        slot: slot!(name),
    },
    OptionSpec {
        name: "chat-template", flag: Flag::value("NAME|FILE"), key: Key::MODEL, group: Group::Model,
        default: DefaultValue::depends("the model's", "\"chatml\""),
        help: "Template for messages in place of the model's: chatml, gemma, llama3, mistral, plain, or a Jinja file",
        value: Value::Text(Form::Word, parsed!(chat_template)),
        slot: slot!(chat_template),
    },
    OptionSpec {
        name: "default-model", flag: Flag::None, key: Key::SERVER.reloaded(), group: Group::Model,
        default: DefaultValue::depends("that of model; else every request must name one", "\"model\""),
        help: "Model of requests that name none, if there are several",
        value: Value::Text(Form::Word, parsed!(default_model)),
        slot: slot!(default_model),
    },
    OptionSpec {
        name: "memory-limit", flag: Flag::None, key: Key::SERVER.reloaded(), group: Group::Model,
        default: DefaultValue::depends("the free memory, if there are several models", "\"24GiB\""),
        help: "Memory that all loaded models may take together, by an estimate of weights and contexts",
        value: Value::Text(Form::Word, |all, text| {
            all.memory_limit = Some(size::parse(text)?);
            Ok(())
        }),
        slot: slot!(memory_limit),
    },
    OptionSpec {
        name: "socket", flag: Flag::value("PATH"), key: Key::SERVER, group: Group::Listening,
        default: DefaultValue::depends("$XDG_RUNTIME_DIR/anneal/anneal.sock without --listen", "\"/run/user/1000/anneal/anneal.sock\""),
        help: "Unix socket, for lines of JSON and for HTTP",
        value: Value::Path(|all, path| all.socket = Some(path)),
        slot: slot!(socket),
    },
    OptionSpec {
        name: "socket-group", flag: Flag::value("GROUP"), key: Key::SERVER, group: Group::Listening,
        default: DefaultValue::depends("none: only this user", "\"users\""),
        help: "Group that may use the socket as well",
        value: Value::Text(Form::Word, parsed!(socket_group)),
        slot: slot!(socket_group),
    },
    OptionSpec {
        name: "listen", flag: Flag::value("ADDRESS"), key: Key::SERVER, group: Group::Listening,
        default: DefaultValue::depends("none", "\"127.0.0.1:8080\""),
        help: "Address for HTTP, as 127.0.0.1:8080; an address that other machines can reach needs --api-key-file",
        value: Value::Text(Form::Word, parsed!(listen)),
        slot: slot!(listen),
    },
    OptionSpec {
        name: "health-listen", flag: Flag::value("ADDRESS"), key: Key::SERVER, group: Group::Listening,
        default: DefaultValue::depends("none", "\"127.0.0.1:8081\""),
        help: "Separate address for GET /health and GET /metrics, with its own connections",
        value: Value::Text(Form::Word, parsed!(health_listen)),
        slot: slot!(health_listen),
    },
    OptionSpec {
        name: "metrics-without-key", flag: Flag::None, key: Key::SERVER, group: Group::Listening,
        default: DefaultValue::Truth(false),
        help: "Answer /metrics at --health-listen without a key",
        value: Value::Truth(|all, value| all.metrics_without_key = Some(value)),
        slot: slot!(metrics_without_key),
    },
    OptionSpec {
        name: "api-key-file", flag: Flag::value("FILE"), key: Key::SERVER.reloaded(), group: Group::Listening,
        default: DefaultValue::depends("none", "\"api-keys\""),
        help: "File with a key in each line; requests over TCP need one of them",
        value: Value::Path(|all, path| all.api_key_file = Some(path)),
        slot: slot!(api_key_file),
    },
    OptionSpec {
        name: "max-connections", flag: Flag::None, key: Key::SERVER, group: Group::Listening,
        default: DefaultValue::Number(DEFAULT_CONNECTIONS as f64),
        help: "Connections at a time, to the socket and to the address each; at the limit, idle connections are closed for new ones",
        value: Value::Whole { least: 1, most: 65_536, range: "1 to 65536", set: |all, value| all.max_connections = Some(value) },
        slot: slot!(max_connections),
    },
    OptionSpec {
        name: "max-connections-per-address", flag: Flag::None, key: Key::SERVER.reloaded(), group: Group::Listening,
        default: DefaultValue::Number(DEFAULT_CONNECTIONS_PER_ADDRESS as f64),
        help: "Connections at a time to the address from one IPv4 address, or from one /64 of IPv6",
        value: Value::Whole { least: 1, most: 65_536, range: "1 to 65536", set: |all, value| all.max_connections_per_address = Some(value) },
        slot: slot!(max_connections_per_address),
    },
    OptionSpec {
        name: "max-request-bytes", flag: Flag::None, key: Key::SERVER.reloaded(), group: Group::Listening,
        default: DefaultValue::Number(DEFAULT_REQUEST_BYTES as f64),
        help: "Bytes of the longest request",
        value: Value::Whole { least: 1024, most: 1 << 30, range: "1024 to 1073741824", set: |all, value| all.max_request_bytes = Some(value) },
        slot: slot!(max_request_bytes),
    },
    OptionSpec {
        name: "max-waiting-bytes", flag: Flag::None, key: Key::SERVER.reloaded(), group: Group::Listening,
        default: DefaultValue::Number(DEFAULT_WAITING_BYTES as f64),
        help: "Bytes of all requests that wait for the rest of their body, a model or a slot; one client may have half of them, and one request always fits",
        value: Value::Whole { least: 1024, most: u32::MAX, range: "1024 to 4294967295", set: |all, value| all.max_waiting_bytes = Some(value) },
        slot: slot!(max_waiting_bytes),
    },
    OptionSpec {
        name: "idle", flag: Flag::None, key: Key::SERVER.named("idle_s").reloaded(), group: Group::Listening,
        default: DefaultValue::Number(DEFAULT_IDLE_S),
        help: "Seconds without a request after which a connection is closed; the first request must begin within 10",
        value: Value::Number { least: 0.0, most: WEEK_S, range: SECONDS, set: |all, value| all.idle_s = Some(value) },
        slot: slot!(idle_s),
    },
    OptionSpec {
        name: "idle-unauthenticated", flag: Flag::None, key: Key::SERVER.named("idle_unauthenticated_s").reloaded(), group: Group::Listening,
        default: DefaultValue::Number(DEFAULT_IDLE_UNAUTHENTICATED_S),
        help: "The same over TCP for a client that has not shown a valid key, or, without keys, has sent no valid request except /health",
        value: Value::Number { least: 0.0, most: WEEK_S, range: SECONDS, set: |all, value| all.idle_unauthenticated_s = Some(value) },
        slot: slot!(idle_unauthenticated_s),
    },
    OptionSpec {
        name: "stall", flag: Flag::None, key: Key::SERVER.named("stall_s").reloaded(), group: Group::Listening,
        default: DefaultValue::Number(DEFAULT_STALL_S),
        help: "Seconds for which a client may leave its answer unread before the request ends",
        value: Value::Number { least: 0.0, most: WEEK_S, range: SECONDS, set: |all, value| all.stall_s = Some(value) },
        slot: slot!(stall_s),
    },
    OptionSpec {
        name: "slots", flag: Flag::aliased("N", &["parallel"]), key: Key::MODEL, group: Group::Requests,
        default: DefaultValue::Number(DEFAULT_SLOTS as f64),
        help: "Requests that run at a time; they share the context",
        value: Value::Whole { least: 1, most: MAX_SEQUENCES, range: "1 to 256", set: |all, value| all.slots = Some(value) },
        slot: slot!(slots),
    },
    OptionSpec {
        name: "pools", flag: Flag::None, key: Key::MODEL, group: Group::Requests,
        default: DefaultValue::Number(DEFAULT_POOLS as f64),
        help: "Contexts of the model, each with its own slots and cores; the weights are shared",
        value: Value::Whole { least: 1, most: MAX_POOLS, range: "1 to 64", set: |all, value| all.pools = Some(value) },
        slot: slot!(pools),
    },
    OptionSpec {
        name: "queue", flag: Flag::value("N"), key: Key::MODEL.reloaded(), group: Group::Requests,
        default: DefaultValue::Number(DEFAULT_QUEUE as f64),
        help: "Requests that wait at most; the next one is told to try again later",
        value: Value::Whole { least: 0, most: 1 << 20, range: "0 or more", set: |all, value| all.queue = Some(value) },
        slot: slot!(queue),
    },
    OptionSpec {
        name: "max-tokens", flag: Flag::value("N"), key: Key::MODEL.reloaded(), group: Group::Requests,
        default: DefaultValue::Number(DEFAULT_MAX_TOKENS as f64),
        help: "Most tokens of an answer if a request names no number",
        value: Value::Whole { least: 1, most: u32::MAX, range: "1 or more", set: |all, value| all.max_tokens = Some(value) },
        slot: slot!(max_tokens),
    },
    OptionSpec {
        name: "timeout", flag: Flag::value("S"), key: Key::MODEL.named("timeout_s").reloaded(), group: Group::Requests,
        default: DefaultValue::Number(DEFAULT_TIMEOUT_S),
        help: "Seconds that a request may take, waiting included; requests may ask for less",
        value: Value::Number { least: 0.0, most: WEEK_S, range: SECONDS, set: |all, value| all.timeout_s = Some(value) },
        slot: slot!(timeout_s),
    },
    OptionSpec {
        name: "drain", flag: Flag::value("S"), key: Key::SERVER.named("drain_s").reloaded(), group: Group::Requests,
        default: DefaultValue::Number(DEFAULT_DRAIN_S),
        help: "Seconds for which running requests may go on after SIGTERM",
        value: Value::Number { least: 0.0, most: WEEK_S, range: SECONDS, set: |all, value| all.drain_s = Some(value) },
        slot: slot!(drain_s),
    },
    OptionSpec {
        name: "step-ms", flag: Flag::None, key: Key::MODEL.reloaded(), group: Group::Requests,
        default: DefaultValue::Number(DEFAULT_STEP_MS as f64),
        help: "Milliseconds that prompts may add to the time between two tokens of others, and up to four times as much if more slots read their prompts than generate: less is smoother, more gives more throughput",
        value: Value::Whole { least: 1, most: 60_000, range: "1 to 60000", set: |all, value| all.step_ms = Some(value) },
        slot: slot!(step_ms),
    },
    OptionSpec {
        name: "prompt-reuse", flag: Flag::None, key: Key::MODEL.reloaded(), group: Group::Requests,
        default: DefaultValue::Truth(true),
        help: "Keep evaluated prompts for later prompts that begin the same",
        value: Value::Truth(|all, value| all.prompt_reuse = Some(value)),
        slot: slot!(prompt_reuse),
    },
    OptionSpec {
        name: "prompt-sharing", flag: Flag::Switch, key: Key::SERVER.reloaded(), group: Group::Requests,
        default: DefaultValue::Truth(false),
        help: "Let all clients share evaluated prompts: a client can then find out what others have asked",
        value: Value::Truth(|all, value| all.prompt_sharing = Some(value)),
        slot: slot!(prompt_sharing),
    },
    OptionSpec {
        name: "embedding-pooling", flag: Flag::None, key: Key::MODEL, group: Group::Requests,
        default: DefaultValue::depends("the model's, else mean", "\"mean\""),
        help: "Tokens that an embedding is made of: mean, first or last",
        value: Value::Text(Form::Word, parsed!(embedding_pooling)),
        slot: slot!(embedding_pooling),
    },
    OptionSpec {
        name: "prompt-cache", flag: Flag::value("DIR"), key: Key::MODEL, group: Group::PromptCache,
        default: DefaultValue::depends("none", "\"prompt-cache\""),
        help: "Folder that keeps prompts on the disk when no slot has room for them",
        value: Value::Path(|all, path| all.prompt_cache = Some(path)),
        slot: slot!(prompt_cache),
    },
    OptionSpec {
        name: "prompt-cache-size", flag: Flag::value("SIZE"), key: Key::MODEL, group: Group::PromptCache,
        default: DefaultValue::Text("2GiB"),
        help: "Most that the folder may take, as in 500MiB; the prompts unused for longest go first",
        value: Value::Text(Form::Word, |all, text| {
            all.prompt_cache_size = Some(size::parse(text)?);
            Ok(())
        }),
        slot: slot!(prompt_cache_size),
    },
    OptionSpec {
        name: "prompt-cache-ro", flag: Flag::Switch, key: Key::MODEL, group: Group::PromptCache,
        default: DefaultValue::Truth(false),
        help: "Only read the folder",
        value: Value::Truth(|all, value| all.prompt_cache_ro = Some(value)),
        slot: slot!(prompt_cache_ro),
    },
    OptionSpec {
        name: "speculative", flag: Flag::value("WHO"), key: Key::MODEL, group: Group::Drafts,
        default: DefaultValue::depends("off, or model with --draft-model", "\"off\""),
        help: "Speculative decoding: off, asked (requests that ask for it), lookup (drafts from the text itself, for all requests that do not say otherwise) or model (drafts of --draft-model, likewise)",
        value: Value::Text(Form::Word, parsed!(speculative)),
        slot: slot!(speculative),
    },
    OptionSpec {
        name: "draft-model", flag: Flag::aliased("FILE", &["model-draft"]), key: Key::MODEL, group: Group::Drafts,
        default: DefaultValue::depends("none", "\"small.gguf\""),
        help: "Smaller model of the same vocabulary that drafts",
        value: Value::Path(|all, path| all.draft_model = Some(path)),
        slot: slot!(draft_model),
    },
    OptionSpec {
        name: "draft-p-min", flag: Flag::value("P"), key: Key::MODEL, group: Group::Drafts,
        default: DefaultValue::Number(DEFAULT_LEAST_P as f64),
        help: "Least probability of a token that the smaller model drafts",
        value: Value::Number { least: 0.0, most: 1.0, range: "0 to 1", set: |all, value| all.draft_p_min = Some(value as f32) },
        slot: slot!(draft_p_min),
    },
    OptionSpec {
        name: "draft-max", flag: Flag::value("N"), key: Key::MODEL, group: Group::Drafts,
        default: DefaultValue::Number(DEFAULT_MOST as f64),
        help: "Most tokens of a draft",
        value: Value::Whole { least: 1, most: MOST, range: "1 to 15", set: |all, value| all.draft_max = Some(value) },
        slot: slot!(draft_max),
    },
    OptionSpec {
        name: "draft-near", flag: Flag::Switch, key: Key::MODEL, group: Group::Drafts,
        default: DefaultValue::Truth(false),
        help: "Draft even if a batch of tokens rounds differently from single tokens: a text may then differ from one without drafts where two tokens are nearly as likely",
        value: Value::Truth(|all, value| all.draft_near = Some(value)),
        slot: slot!(draft_near),
    },
    OptionSpec {
        name: "log-format", flag: Flag::value("FORMAT"), key: Key::SERVER, group: Group::Log,
        default: DefaultValue::depends("no log, unless --log-level is given", "\"text\""),
        help: "Log to stderr in this form: text or json",
        value: Value::Text(Form::Word, parsed!(log_format)),
        slot: slot!(log_format),
    },
    OptionSpec {
        name: "log-level", flag: Flag::value("LEVEL"), key: Key::SERVER, group: Group::Log,
        default: DefaultValue::depends("info, if --log-format is given", "\"info\""),
        help: "Log to stderr what is at least as important as this: error, warn, info (each request when it is over), debug (llama.cpp's messages as well) or trace. Prompts and answers are not logged, see log_prompts",
        value: Value::Text(Form::Word, parsed!(log_level)),
        slot: slot!(log_level),
    },
    OptionSpec {
        name: "log-prompts", flag: Flag::None, key: Key::SERVER, group: Group::Log,
        default: DefaultValue::Truth(false),
        help: "Write prompts and answers into the log. Without it the log holds nothing that a client says",
        value: Value::Truth(|all, value| all.log_prompts = Some(value)),
        slot: slot!(log_prompts),
    },
];
