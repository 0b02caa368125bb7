//! Analysis of the repository's structure: dependencies among crates, and imports among the files of a crate.

mod circles;
mod crates;
mod files;
mod graph;
mod modules;
mod paths;
mod type_names;
mod unit_tests;
mod unsafe_code;

pub use circles::{Circle, Edge, circles};
pub use crates::{Member, members, upward};
pub use files::rust_files;
pub use graph::draw;
pub use modules::{Imports, imports};
pub use type_names::type_names;
pub use unit_tests::misplaced_tests;
pub use unsafe_code::unsafe_code;
