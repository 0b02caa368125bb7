//! Reads the machine into a [`build_info::Host`]: CPUID and XCR0, cores and caches, NUMA, memory, affinity,
//! control groups, NVIDIA GPUs.
//!
//! Everything is read through one [`Root`], so that a test can put another machine in its place. Nothing here
//! fails: what cannot be read is `None` or empty in the host, and said in [`Detected::warnings`].
//!
//! Built to run at every start of the engine: a few CPUID leaves and small files below `/proc` and `/sys`,
//! about 15 a core. The NVIDIA driver is asked, through its library or else by its program, only where it shows that it
//! is loaded.

mod cgroup;
mod cpuid;
mod cpuinfo;
mod cpulist;
mod detect;
mod features;
mod gpu;
pub mod nvml;
pub mod process;
mod root;
mod snapshot;
pub mod state;
mod system;
mod topology;
mod x86;

pub use cpuid::Cpuid;
pub use detect::{Detected, detect, driver, gpus};
pub use gpu::{Card, Driver};
pub use nvml::ComputeMode;
pub use root::Root;
pub use snapshot::SnapshotError;
