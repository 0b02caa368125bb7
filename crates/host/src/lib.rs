//! Detects the machine's properties as a [`build_info::Host`]: CPUID and XCR0, cores and caches, NUMA, memory,
//! affinity, control groups, NVIDIA GPUs.
//!
//! All readings go through one [`Root`], so that a test can replace the machine. Detection never fails: a value that
//! cannot be read is `None` or empty in the host, with a message in [`Detected::warnings`].
//!
//! The detection is fast enough for every start of the engine: it reads a few CPUID leaves and small files below
//! `/proc` and `/sys`, about 15 per core. The NVIDIA driver is queried only if a driver is loaded: through the driver's
//! library, or with `nvidia-smi` as a fallback.

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
pub use detect::{Detected, ProcessLimits, detect, driver, gpus, limits_of};
pub use gpu::{Card, Driver};
pub use nvml::ComputeMode;
pub use root::Root;
pub use snapshot::SnapshotError;
