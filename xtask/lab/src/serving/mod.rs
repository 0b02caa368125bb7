//! Measurement of servers. Servers are started, queried by many clients and compared with each other.

mod equal;
pub mod figures;
pub mod prompts;
pub mod race;
pub mod sample;
pub mod server;
pub mod soak;

pub use figures::Served;
pub use race::Race;
pub use server::{MeasuredServer, ServerKind};
