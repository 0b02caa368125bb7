//! Memory that a model takes of each device and of the host, and the layers that find room: figures and their words.
//!
//! The figures themselves come from llama.cpp, which adds them up for a model loaded without memory (`no_alloc`).

mod estimate;
mod need;
mod plan;
mod search;
mod text;

pub use estimate::{Compared, Estimate};
pub use need::{CUDA_RUNTIME, Need, Taken, add_up, excess, lack, lack_beside_weights, runtime};
pub use plan::LayerPlan;
pub use search::choose;
