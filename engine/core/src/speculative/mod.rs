//! Speculative decoding: several tokens that may follow are evaluated together, and those stay that would have been
//! chosen.
//!
//! A draft comes from the text itself ([`lookup`]) or from a smaller model ([`draft_model`]). The model evaluates it in
//! one batch, and the [`Chain`](sampling::Chain) chooses at each place as it would have without: as long as it
//! chooses what was drafted, the next place is valid too. The first other token ends it, and what was evaluated after it
//! is taken back.
//!
//! That gives the same tokens if a batch gives the same logits as single tokens do, to the last bit. Some kernels do and
//! some do not, so it is looked at ([`sameness`]), and where it differs nothing is drafted unless `near` was asked for.

mod draft_model;
mod gain;
pub(crate) mod generate;
mod lookup;
pub(crate) mod options;
pub(crate) mod report;
mod sameness;
pub(crate) mod speculator;
#[cfg(test)]
mod tests;

pub use draft_model::DraftModel;
pub use gain::{Gain, Loss};
pub use generate::go_on;
pub use lookup::Lookup;
pub use options::{DEFAULT_LEAST_P, DEFAULT_MOST, MOST, SpeculativeOptions};
pub use report::{DIFFERS, DraftReport};
pub use sameness::{BatchComparison, Sameness, WIDTHS};
pub use speculator::{Speculator, impossible, reach_after};
