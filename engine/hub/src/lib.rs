//! Models named by their repository on the Hugging Face hub: `owner/repo:Q4_K_M`.
//!
//! The crate hf-hub is the client: it knows the addresses, the token and the folders of the cache. This crate adds
//! what hf-hub lacks:
//! - verification of the downloaded bytes
//! - a check of the server's answer to a range request
//! - time limits
//! - waiting for a download by another process (hf-hub gives up after five seconds)
//!
//! So [`transfer`] downloads files with hf-hub's requests. Once a file is complete and its digest matches, it is
//! renamed to its name in [`place`], where other tools find it.
//!
//! - [`name`] parses the name that the user typed, [`listing`] parses the hub's answer, and [`choose`] selects files
//!   from it.
//! - [`Hub`] combines them.

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
