//! Reads the structure of the repository: which crate depends on which, and which file of a crate imports which.

mod circles;
mod crates;
mod modules;
mod paths;

pub use circles::{Circle, Edge, circles};
pub use crates::{Member, members, upward};
pub use modules::{Imports, imports};
