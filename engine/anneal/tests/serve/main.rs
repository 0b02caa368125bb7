//! Tests of `anneal serve` from a client's view. The server is a separate process with the tiny model.
#![cfg(target_os = "linux")]

mod alone;
mod answers;
mod bad_input;
mod chat;
mod checkpoints;
mod client;
#[path = "../common/mod.rs"]
mod common;
mod crowd;
mod device;
mod dialects;
mod disk;
mod drafts;
mod embeddings;
mod end;
mod grammar_budget;
mod http;
mod infill;
mod likelihoods;
mod log;
mod logprobs;
mod models;
mod numa;
mod openapi;
mod pools;
mod progress;
mod reasoning;
mod rerank;
mod schemas;
mod shapes;
mod signals;
mod thoughts;
mod tools;
mod top;
mod workloads;
