//! Models by their names on the Hugging Face hub: `owner/repo:Q4_K_M`.
//!
//! The crate hf-hub is the client: addresses, token, and the folders of the cache. What it does not do is done here on
//! top of it: it neither verifies what it downloads nor looks at how a server answers when it goes on with half a file,
//! knows no time limits, and waits five seconds for another process. So [`transfer`] fetches, as hf-hub's own client asks,
//! and what is complete and has the right digest gets its name in [`place`], where other tools find it.
//!
//! - [`name`] reads what was typed, [`listing`] what the hub answers, and [`choose`] takes files out of that.
//! - [`Hub`] does it all.

pub mod choose;
mod client;
mod error;
pub mod listing;
pub mod name;
mod options;
pub mod place;
mod request;
mod transfer;

pub use client::{Hub, LocalModel};
pub use error::Error;
pub use name::Name;
pub use options::{ENDPOINT, HubOptions, Patience, Watch};
