//! Memory that a model needs on each device and on the host, the number of layers that fit, and descriptions of both.
//!
//! The figures come from llama.cpp, which computes them for a model that is loaded without allocating memory
//! (`no_alloc`).

mod estimate;
mod need;
mod plan;
mod search;
mod text;

pub use estimate::{Compared, Estimate};
pub use need::{CUDA_RUNTIME, Need, Taken, add_up, excess, lack, lack_beside_weights, runtime};
pub use plan::LayerPlan;
pub use search::choose;
