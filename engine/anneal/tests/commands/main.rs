//! Tests of the program's commands, run as a user runs them.

mod bad_input;
mod bench;
mod chat;
#[path = "../common/mod.rs"]
mod common;
mod constrained;
mod eval;
mod fit;
#[cfg(target_os = "linux")]
mod fuse;
mod generation;
mod gpu;
mod guard;
mod installation;
mod logits;
mod mcp;
mod parameters;
mod prompt_cache;
mod quantize;
mod resources;
mod rpc;
mod same_bits;
mod speculative;
mod streams;
mod tokenize;
mod tune;
