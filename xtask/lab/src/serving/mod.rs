//! Servers as programs that are started, asked by many clients, and held against each other.

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
