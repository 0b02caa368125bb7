//! What a machine's NVIDIA GPU does with our build: whether all of it computes there, whether it always says the same, how
//! fast it is beside llama-bench, how little of the host it takes. In minutes, from one archive, into one file.
//!
//! A list of steps under a budget is data ([`plan`]); a [`carry_out::RunningCheck`] carries them out one by one and fills a
//! [`Report`]; what is to be said of that follows from it ([`figures`]) and is shown by [`page`]. Nothing here looks at a
//! checkout but what packs the archive ([`archive`]).

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
