//! Chooses tokens: llama.cpp's samplers, grammars and JSON schemas.
//!
//! [`SamplingOptions`] says what is asked for, a [`Chain`] does it for one text.

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
