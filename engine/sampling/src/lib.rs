//! Token sampling: llama.cpp's samplers, grammars and JSON schemas.
//!
//! [`SamplingOptions`] contains the settings, and a [`Chain`] applies them to one text.

mod alone;
mod chain;
mod digits;
mod gbnf;
mod guide;
mod multiples;
mod schema;
mod watch;

pub use alone::check_gbnf;
pub use chain::{Chain, asks_devices};
pub use guide::ignored_keywords;
pub use llama::sampling::{
    Bias, Constraint, DeviceReport, PARAMETERS, Parameter, SamplingOptions, SamplingPlan, SamplingStep, whole,
};
