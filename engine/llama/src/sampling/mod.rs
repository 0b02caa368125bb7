//! Options of the sampler, and the part of them that a device can do.

mod bias;
mod device;
mod options;

pub use bias::Bias;
pub use device::{DeviceReport, SamplingPlan, SamplingStep};
pub use options::{Constraint, PARAMETERS, Parameter, SamplingOptions, whole};
