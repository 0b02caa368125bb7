//! Speculative decoding: several drafted tokens are evaluated together, and the tokens that would have been chosen
//! without a draft are kept.
//!
//! A draft comes from the text itself ([`lookup`]) or from a smaller model ([`draft_model`]). The model evaluates the
//! draft in one batch, and the [`Chain`](sampling::Chain) chooses a token at each position as it would without a
//! draft. As long as the chosen token equals the drafted token, the next position is also valid. The first different
//! token ends the draft, and the tokens after it are removed from the context.
//!
//! The text is the same as without drafts if a batch gives the same logits as single tokens, bit for bit. Anneal's own
//! kernels guarantee this. Other kernels may not, so their batches are compared with single tokens ([`sameness`]).
//! If the logits differ, drafts are only used if `near` is set.

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
pub use speculator::{Speculator, reach_after};
