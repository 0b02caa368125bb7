//! Packs a build into archives and checks archives. The crate `install` installs them.
//!
//! The program `ship` reads one [`Order`] as JSON from standard input, writes one [`Reply`] as JSON to standard
//! output, and shows its progress on standard error. `ship` is a separate program because `xtask` is compiled before
//! anything else: xtask uses this crate without the feature `tools`, with only [`order`] and [`crates`].

pub mod crates;
pub mod order;

pub use order::{Answer, Order, Reply};

#[cfg(feature = "tools")]
mod compare;
#[cfg(feature = "tools")]
mod interrupt;
#[cfg(feature = "tools")]
mod pack;
#[cfg(feature = "tools")]
mod sbom;
#[cfg(feature = "tools")]
mod speak;
#[cfg(feature = "tools")]
mod verify;

#[cfg(feature = "tools")]
pub use tools::*;

/// Code that only the program needs.
#[cfg(feature = "tools")]
mod tools {
    use anyhow::Result;

    pub use base::exit::{code_of, usage};

    pub use crate::interrupt::catch_signals;
    pub use crate::pack::plain;
    pub use crate::speak::speak;
    use crate::{Answer, Order, compare, pack, verify};

    /// Carries out `order`.
    ///
    /// # Errors
    /// If the order fails.
    pub fn carry_out(order: &Order) -> Result<Answer> {
        match order {
            Order::Pack(order) => pack::pack(order).map(Answer::Packed),
            Order::Place(order) => pack::place(order).map(Answer::Placed),
            Order::Verify(order) => verify::verify(order).map(Answer::Verified),
            Order::Compare(order) => compare::compare(&order.one, &order.other).map(Answer::Compared),
            Order::Install(order) => install::install(order).map(Answer::Installed),
            Order::Rollback(order) => install::rollback(order).map(Answer::Switched),
            Order::Uninstall(order) => install::uninstall(order).map(Answer::Uninstalled),
            Order::List(order) => install::list(order).map(Answer::Listed),
        }
    }
}
