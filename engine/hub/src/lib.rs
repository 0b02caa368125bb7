//! Downloads models from the Hugging Face hub. A model's name is its repository with an optional quantisation:
//! `owner/repo:Q4_K_M`.
//!
//! The crate hf-hub is the client and provides the addresses, the token and the cache folders. This crate adds:
//! - verification of the downloaded bytes
//! - a check of the server's response to a range request
//! - time limits
//! - waiting for a download by another process (hf-hub gives up after five seconds)
//!
//! [`transfer`] downloads files with hf-hub's requests. A complete file with a matching digest is renamed to its
//! final name in the cache ([`place`]), where other tools find it.
//!
//! - [`name`] parses the name that the user typed, [`listing`] parses the hub's response, and [`choose`] selects files
//!   from the listing.
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
