//! Sampling options, and the sampling steps that a device can perform.

mod bias;
mod device;
mod options;

pub use bias::Bias;
pub use device::{DeviceReport, SamplingPlan, SamplingStep};
pub use options::{Constraint, PARAMETERS, Parameter, SamplingOptions, seed_number, whole};
