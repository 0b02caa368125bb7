//! Load generator for servers that generate text: many concurrent clients, with the arrival time of each token.
//!
//! The load generator shares the machine with the server under test, so it uses little CPU time: one blocking thread
//! per client, one search per line, and no JSON parser. It supports only the parts of HTTP/1.1 that the two tested
//! servers use, and rejects everything else.

pub mod answer;
pub mod drive;
pub mod http;
pub mod lines;
pub mod request;
pub mod wire;

pub use answer::{Answer, AnswerEnd};
pub use drive::{Drive, LoadPlan, drive};
pub use request::{Ask, Interface};
pub use wire::{Address, Wire};
