//! Attacks on the program: hostile texts, model files, connections, neighbours and files.
//!
//! Every run includes a part of each attack and takes about a minute. `cargo xtask test --hostile` runs all attacks
//! in full.
#![cfg(target_os = "linux")]

#[allow(dead_code, reason = "the server's tests use the rest")]
#[path = "../serve/client.rs"]
mod client;
mod clients;
#[path = "../common/mod.rs"]
mod common;
mod connections;
mod effort;
mod files;
mod models;
mod text;
