//! A client of servers that generate text: many at a time, and when each token came.
//!
//! It shares the machine with the server that it measures, so it does little: one blocking thread for each client, one
//! search of each line, no JSON. It speaks as much HTTP/1.1 as two servers answer with, and refuses the rest.

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
