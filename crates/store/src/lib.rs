//! Finished builds that a group of machines shares, so that the second machine of a kind compiles nothing.
//!
//! A store is a folder, a folder on a web server (read-only), or an S3 bucket. [`layout`] describes its files. The
//! program `store` reads one [`Order`] as JSON from standard input and writes one [`Reply`] as JSON to standard output.
//! `store` is a separate program for the same reason as `ship`: xtask uses only the data types of this crate, without
//! the feature `tools`.

pub mod entry;
pub mod key;
pub mod layout;
pub mod location;
pub mod order;

pub use entry::{Build, Entry, Object};
pub use key::{CpuKind, Parts};
pub use location::Location;
pub use order::{Answer, Order, Reply};

#[cfg(feature = "tools")]
mod ask;
#[cfg(feature = "tools")]
mod check;
#[cfg(feature = "tools")]
mod choose;
#[cfg(feature = "tools")]
mod download;
#[cfg(feature = "tools")]
mod place;
#[cfg(feature = "tools")]
mod publish;
#[cfg(feature = "tools")]
mod take;
#[cfg(feature = "tools")]
mod tuned;

/// Carries out `order`.
///
/// # Errors
/// If the order fails.
#[cfg(feature = "tools")]
pub fn carry_out(order: &Order) -> anyhow::Result<Answer> {
    match order {
        Order::Ask(order) => ask::ask(order).map(Answer::Asked),
        Order::Check(order) => check::check(order).map(Answer::Checked),
        Order::Take(order) => take::take(order).map(Answer::Taken),
        Order::Publish(order) => {
            publish::publish(order).map(|published| Answer::Published(Box::new(published)))
        }
        Order::Tune(order) => tuned::publish(order).map(Answer::Tuned),
        Order::Choose(order) => choose::choose(order).map(|chosen| Answer::Chosen(Box::new(chosen))),
    }
}
