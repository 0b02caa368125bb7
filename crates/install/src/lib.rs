//! Fetches, verifies and installs archives of Anneal, and switches between installed versions.
//!
//! Each version is unpacked and checked in a work folder. One rename moves the version into place, and another makes
//! it current. If the process is killed before the second rename, the earlier version stays current.
//!
//! `anneal self` and `cargo xtask install` run this crate. xtask is compiled before anything else, so it uses the crate
//! without the feature `tools`, with only [`order`] and [`key`], and leaves the rest to the program `ship`.

pub mod key;
pub mod order;

#[cfg(feature = "tools")]
mod choose;
#[cfg(feature = "cli")]
pub mod commands;
#[cfg(feature = "tools")]
pub mod elf;
#[cfg(feature = "tools")]
pub mod fetch;
#[cfg(feature = "tools")]
pub mod files;
#[cfg(feature = "tools")]
mod installation;
#[cfg(feature = "tools")]
pub mod interrupt;
#[cfg(feature = "tools")]
mod links;
#[cfg(feature = "tools")]
mod lock;
#[cfg(feature = "tools")]
pub mod name;
#[cfg(feature = "cli")]
mod origin;
#[cfg(feature = "tools")]
pub mod pace;
#[cfg(feature = "tools")]
mod prefix;
#[cfg(feature = "tools")]
pub mod program;
#[cfg(feature = "tools")]
pub mod progress;
#[cfg(feature = "tools")]
mod remove;
#[cfg(feature = "tools")]
mod running;
#[cfg(feature = "cli")]
mod signals;
#[cfg(feature = "tools")]
mod signature;
#[cfg(feature = "tools")]
mod source;
#[cfg(feature = "tools")]
mod stage;
#[cfg(feature = "tools")]
pub mod sums;
#[cfg(feature = "tools")]
mod switch;
#[cfg(feature = "tools")]
pub mod unpack;

#[cfg(feature = "tools")]
pub use installation::{install, list};
#[cfg(feature = "tools")]
pub use remove::uninstall;
#[cfg(feature = "tools")]
pub use switch::rollback;
