//! Choice of tokens: llama.cpp's samplers, grammars and JSON schemas.
//!
//! [`SamplingOptions`] contains the settings, and a [`Chain`] applies them to one text.

mod alone;
mod chain;
mod gbnf;
mod guide;
mod multiples;
mod watch;

pub use alone::check_gbnf;
pub use chain::{Chain, asks_devices};
pub use llama::sampling::{
    Bias, Constraint, DeviceReport, PARAMETERS, Parameter, SamplingOptions, SamplingPlan, SamplingStep, whole,
};
