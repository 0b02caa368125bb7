//! Sampling options, and the steps that a device can do.

mod bias;
mod device;
mod options;

pub use bias::Bias;
pub use device::{DeviceReport, SamplingPlan, SamplingStep};
pub use options::{Constraint, PARAMETERS, Parameter, SamplingOptions, whole};
