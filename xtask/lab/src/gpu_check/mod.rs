//! Check of a build on a machine's NVIDIA GPU. The check verifies that everything runs on the GPU and that the
//! output is deterministic. It compares the speed with llama-bench's and measures the host's CPU use. The check takes
//! minutes, starts from one archive and writes one report.
//!
//! [`plan`] selects the steps that fit into a budget. A [`carry_out::RunningCheck`] carries them out one by one and
//! fills a [`Report`]. [`figures`] derives the verdicts from the report, and [`page`] shows them. Only the code
//! that packs the archive ([`archive`]) needs a checkout.

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
