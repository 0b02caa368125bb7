//! Server of `anneal serve`. Requests over a Unix socket and over HTTP run together in a shared context.
//!
//! - [`connection`] accepts connections that [`admission`] allows.
//! - [`ndjson`] and [`http`] read requests from the connections, and [`request`] validates the requests.
//! - [`conversation`] turns messages into a prompt.
//! - [`server`] passes requests through [`queue`] to the [`scheduler`], the one thread that owns the context.
//! - The events in [`job`] return the results through a channel.
//!
//! Everything except the scheduler and slow work runs on one thread.

pub mod address;
pub mod admission;
pub mod api_error;
mod arrival;
pub mod blocking_pool;
pub mod budget;
pub mod caught;
pub mod choices;
pub mod client;
pub mod closing;
pub mod config;
pub mod connection;
pub mod conversation;
pub mod count;
pub mod disk_cache;
pub mod done;
pub mod drafts;
pub mod embeddings;
pub mod fields;
pub mod finish_reason;
pub mod grammar_budget;
pub mod hidden_paths;
pub mod http;
pub mod infill;
mod input;
pub mod job;
pub mod keys;
pub mod limits;
pub mod listen;
pub mod log;
pub mod logprobs;
pub mod metrics;
pub mod models;
pub mod ndjson;
pub mod options;
mod origins;
pub mod plan;
pub mod pools;
pub mod queue;
mod reasoning;
pub mod reload;
pub mod request;
pub mod request_log;
pub mod reuse;
pub mod run;
pub mod scheduler;
mod schema_field;
pub mod scope;
pub mod server;
pub mod slot;
pub mod slot_status;
pub mod socket_folder;
pub mod starting;
pub mod status;
pub mod stops;
mod unauthorized_log;
pub mod workloads;
