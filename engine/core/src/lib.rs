//! Core of the engine: models, sessions, settings, placement, prompt cache and speculative decoding.
//!
//! This crate is internal to the engine. Programs use the crate `engine`, which has a stable interface.
#![forbid(unsafe_code)]

pub mod asked_threads;
pub mod cache;
pub mod checkpoints;
pub mod child_process;
mod context;
mod context_options;
pub mod conversation;
pub mod core_lock;
pub mod embed;
mod file_system;
pub mod fit;
pub mod generate;
mod generation;
pub mod gpu;
pub mod logits;
pub mod message_ends;
pub mod model;
mod model_files;
pub mod numa;
pub mod option;
pub mod place;
pub mod placement;
pub mod runtime_host;
pub mod sample_text;
pub mod session;
pub mod settings;
pub mod size;
pub mod speculative;
pub mod stream_utf8;
pub mod terminal;
pub mod thought_counter;
pub mod threads;
pub mod trial;
pub mod tuning;

#[cfg(test)]
mod tests;
