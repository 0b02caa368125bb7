//! Plans a build: computes a plan from a host, a profile, sources and tools. The crate reads no file, clock or
//! environment variable.
//!
//! - [`profile`]: build profiles, with inheritance resolved; the caller reads their files
//! - [`choose`], [`tools`]: the installed tools that a build uses
//! - [`cross`], [`zig`]: builds for another architecture, and for an old glibc
//! - [`isa`], [`march`]: instruction sets, and their compiler flags
//! - [`other_cpu`]: tests of a program that this machine's CPU cannot run
//! - [`lto`], [`codegen`]: link-time optimisation, and flags that change the code
//! - [`blas`], [`cuda`]: BLAS libraries and NVIDIA GPUs
//! - [`variant`], [`bolt`]: plans derived from a plan, for PGO and BOLT
//! - [`plan_marked`]: plans for machines with missing tools

mod aarch64;
pub mod blas;
pub mod bolt;
pub mod choose;
pub mod codegen;
pub mod cross;
pub mod cuda;
mod defaults;
mod definitions;
pub mod isa;
pub mod lto;
pub mod march;
mod missing;
pub mod other_cpu;
mod places;
mod plan;
mod planner;
mod print;
pub mod profile;
mod reference;
mod siblings;
mod switches;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
pub mod tools;
pub mod variant;
pub mod zig;

pub use crate::codegen::CodeGen;
pub use crate::cross::Cross;
pub use crate::cuda::CudaPlan;
pub use crate::isa::IsaPlan;
pub use crate::lto::LtoPlan;
pub use crate::missing::{Missing, plan_marked};
pub use crate::plan::{CLEARED, Plan};
pub use crate::planner::plan;
pub use crate::reference::reference_toolchain;
pub use crate::variant::Variant;
pub use crate::zig::Zig;
