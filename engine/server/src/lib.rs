//! `anneal serve`: requests from a Unix socket and over HTTP, run together in one context.
//!
//! [`connection`] takes connections as far as [`admission`] lets, [`ndjson`] and [`http`] read requests from them, [`request`] checks these,
//! [`conversation`] makes a prompt of messages, and [`server`] hands them to the one thread that owns the context,
//! [`scheduler`], through [`queue`]. What comes of a request goes back through a channel of [`job`]'s events. All but the
//! scheduler, and what may take long, runs on one thread.

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
pub mod input;
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
pub mod plan;
pub mod pools;
pub mod queue;
pub mod reload;
pub mod request;
pub mod request_log;
pub mod reuse;
pub mod run;
pub mod scheduler;
pub mod scope;
pub mod server;
pub mod signals;
pub mod slot;
pub mod slot_status;
pub mod socket_folder;
pub mod starting;
pub mod status;
pub mod stops;
mod unauthorized_log;
pub mod workloads;
