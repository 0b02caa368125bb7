//! Token sampling: llama.cpp's samplers, grammars and JSON schemas.
//!
//! [`SamplingOptions`] contains the settings, and a [`Chain`] applies them to one text.

mod alone;
mod chain;
mod digits;
mod gbnf;
mod guide;
mod multiples;
mod numbers;
mod one_of;
mod parts;
mod patterns;
mod plain;
mod references;
mod relax;
mod schema;
mod watch;

pub use alone::check_gbnf;
pub use chain::{Chain, asks_devices};
pub use llama::sampling::{
    Bias, Constraint, DeviceReport, PARAMETERS, Parameter, SamplingOptions, SamplingPlan, SamplingStep,
    seed_number, whole,
};
