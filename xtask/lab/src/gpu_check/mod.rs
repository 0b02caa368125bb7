//! Check of a build on a machine's NVIDIA GPU: everything computes on the GPU, the output is deterministic, the speed
//! is compared with llama-bench's, and the host's CPU use is low. The check takes minutes, starts from one archive
//! and writes one file.
//!
//! The steps that fit into a budget are data ([`plan`]). A [`carry_out::RunningCheck`] carries them out one by one
//! and fills a [`Report`]. [`figures`] derives the verdicts from the report, and [`page`] shows them. Only the code
//! that packs the archive ([`archive`]) looks at a checkout.

pub mod archive;
mod bench;
mod carry_out;
mod child;
mod decode;
mod engine;
mod estimate;
pub mod figures;
mod models;
pub mod page;
pub mod plan;
pub mod report;

pub use carry_out::{CheckOptions, RunningCheck, check_budget};
pub use engine::{Engine, Sizes};
pub use models::{DEFAULTS, about};
pub use report::Report;
