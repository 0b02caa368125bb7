//! Queries to NVIDIA's driver through its own library (NVML): the available GPUs, their load, and the reasons why
//! GPUs cannot be used.
//!
//! libnvidia-ml comes with the driver and not with the program, so the program loads the library on first use. Only
//! about 25 of the library's roughly 300 functions are looked up. Every driver of the last ten years has the eight
//! required functions; the others may be missing.
//!
//! No environment variable or flag of Anneal can select the library. The system's loader searches for the library as
//! for any other library; after that, a few fixed paths are tried. Only code can specify another file
//! ([`LibrarySource::At`]). Tests do so to load the library of [`testing`].

mod asked;
mod fault;
mod ffi;
mod visible;

#[cfg(any(test, feature = "fake-nvml"))]
pub mod testing;

use std::path::{Path, PathBuf};

pub use asked::{PATIENCE, Unanswered, ask};
pub use fault::Fault;
pub use ffi::{CardLimits, CardMemory, CardSample, ComputeMode, Pcie, Throttling};
pub use visible::{Identity, Selection};

use ffi::{Functions, Handle};

/// Files that exist if a driver is loaded. The last file belongs to WSL 2 and exists for any GPU.
pub const SIGNS: [&str; 3] = ["/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg"];

/// Names and paths of the library, tried in order. The system's loader finds the first entry; `libnvidia-ml.so`
/// without a number is the toolkit's stub. The other entries are the paths in WSL, NixOS and some containers.
const PLACES: [&str; 4] = [
    "libnvidia-ml.so.1",
    "/usr/lib/wsl/lib/libnvidia-ml.so.1",
    "/run/opengl-driver/lib/libnvidia-ml.so.1",
    "/usr/local/nvidia/lib64/libnvidia-ml.so.1",
];

/// Location of the library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LibrarySource {
    /// The driver's standard location.
    System,
    /// File at this path.
    At(PathBuf),
}

/// True if a driver seems to be loaded on this machine. The check takes three file system accesses.
pub fn driver_seems_loaded() -> bool {
    SIGNS.iter().any(|sign| Path::new(sign).exists())
}

/// Connection to the driver, which lasts as long as this value.
#[derive(Debug)]
pub struct Nvml {
    functions: Functions,
}

impl Nvml {
    /// Loads the library and initialises it. This takes some tens of milliseconds, or seconds if the GPUs sleep, and
    /// never returns if the driver hangs. A caller that cannot wait must use a separate thread.
    ///
    /// # Errors
    /// If the library or the driver is faulty; the error contains a hint.
    pub fn start(place: &LibrarySource) -> Result<Self, Fault> {
        let functions = match place {
            LibrarySource::At(path) => Functions::load(path)?,
            LibrarySource::System => {
                let mut missing = None;
                let found = PLACES.iter().find_map(|place| match Functions::load(Path::new(place)) {
                    Err(fault @ Fault::Missing { .. }) => {
                        missing.get_or_insert(fault);
                        None
                    }
                    other => Some(other),
                });
                match (found, missing) {
                    (Some(found), _) => found?,
                    (None, Some(fault)) => return Err(fault),
                    (None, None) => return Err(Fault::Missing { library: PLACES[0].to_string() }),
                }
            }
        };
        functions.init().map_err(|code| functions.fault("start NVML", code))?;
        Ok(Self { functions })
    }

    /// Returns the version of the kernel driver: `570.133.07`.
    ///
    /// # Errors
    /// If the driver reports an error.
    pub fn driver(&self) -> Result<String, Fault> {
        self.functions.driver().map_err(|code| self.functions.fault("read the driver's version", code))
    }

    /// Returns the newest CUDA version that the driver supports, major and minor number: `(12, 8)`. `None` if the
    /// driver does not report it.
    pub fn cuda(&self) -> Option<(u32, u32)> {
        self.functions.cuda().ok()
    }

    /// Returns all GPUs in the order of their bus positions. A lost GPU is represented by a fault.
    ///
    /// # Errors
    /// If the driver cannot count the GPUs.
    pub fn devices(&self) -> Result<Vec<Result<Device<'_>, Fault>>, Fault> {
        let count = self.functions.count().map_err(|code| self.functions.fault("count the GPUs", code))?;
        // The limit is needed because a stub library may return any number. No machine has more GPUs.
        let device = |index: u32| match self.functions.device(index) {
            Ok(handle) => Ok(Device { nvml: self, handle, label: format!("GPU {index}") }),
            Err(code) => Err(self.functions.fault(format!("open GPU {index}"), code)),
        };
        Ok((0..count.min(256)).map(device).collect())
    }
}

impl Drop for Nvml {
    fn drop(&mut self) {
        self.functions.shutdown();
    }
}

/// GPU or MIG instance.
#[derive(Debug)]
pub struct Device<'a> {
    nvml: &'a Nvml,
    handle: Handle,
    label: String,
}

impl Device<'_> {
    /// Returns the marketing name: `NVIDIA H100 80GB HBM3`.
    ///
    /// # Errors
    /// If the driver reports an error.
    pub fn name(&self) -> Result<String, Fault> {
        self.nvml.functions.name(self.handle).map_err(|code| self.fault("name", code))
    }

    /// Returns the major and minor number of the compute capability.
    ///
    /// # Errors
    /// If the driver reports an error.
    pub fn capability(&self) -> Result<(u32, u32), Fault> {
        self.nvml.functions.capability(self.handle).map_err(|code| self.fault("compute capability", code))
    }

    /// Returns the memory of the GPU.
    ///
    /// # Errors
    /// If the driver reports an error. GPUs that share the CPU's memory (GB10, Jetson) do not support this query.
    pub fn memory(&self) -> Result<CardMemory, Fault> {
        self.nvml.functions.memory(self.handle).map_err(|code| self.fault("memory", code))
    }

    /// Returns the compute mode; [`ComputeMode::Shared`] if the driver does not report it.
    pub fn compute_mode(&self) -> ComputeMode {
        self.nvml.functions.compute_mode(self.handle).unwrap_or_default()
    }

    /// True if the driver keeps the GPU initialised while no program uses it; `None` if the driver does not report it.
    pub fn persistence_mode(&self) -> Option<bool> {
        self.nvml.functions.persistence_mode(self.handle).ok()
    }

    /// Returns the performance state, from 0 (fastest clocks) to 15; `None` if the driver does not report it.
    pub fn performance_state(&self) -> Option<u32> {
        self.nvml.functions.performance_state(self.handle).ok()
    }

    /// Returns the UUID, `GPU-…` or `MIG-…`; `None` if the driver does not report it.
    pub fn uuid(&self) -> Option<String> {
        self.nvml.functions.uuid(self.handle).ok()
    }

    /// True if MIG is enabled; false on GPUs without MIG.
    pub fn is_partitioned(&self) -> bool {
        self.nvml.functions.is_partitioned(self.handle).unwrap_or(false)
    }

    /// Returns the MIG instances of the GPU.
    pub fn instances(&self) -> Vec<Device<'_>> {
        let Ok(most) = self.nvml.functions.most_instances(self.handle) else { return Vec::new() };
        let instance = |index: u32| {
            let handle = self.nvml.functions.instance(self.handle, index).ok()?;
            Some(Device { nvml: self.nvml, handle, label: format!("instance {index} of {}", self.label) })
        };
        (0..most.min(64)).filter_map(instance).collect()
    }

    /// Samples the current load, which takes some tens of microseconds.
    ///
    /// # Errors
    /// If the GPU does not respond at all. Individual unsupported values are `None`.
    pub fn sample(&self) -> Result<CardSample, Fault> {
        self.nvml.functions.sample(self.handle).map_err(|code| self.fault("state", code))
    }

    /// Measures the current PCIe throughput. This takes 40 ms, so time-critical code must not call this function.
    ///
    /// # Errors
    /// If the measurement is unsupported: in a virtual machine with a part of a GPU (vGPU), or on an old GPU.
    pub fn pcie(&self) -> Result<Pcie, Fault> {
        self.nvml.functions.pcie(self.handle).map_err(|code| self.fault("PCIe traffic", code))
    }

    /// Returns the hardware limits of the GPU.
    pub fn limits(&self) -> CardLimits {
        self.nvml.functions.limits(self.handle)
    }

    fn fault(&self, what: &str, code: u32) -> Fault {
        self.nvml.functions.fault(format!("read the {what} of {}", self.label), code)
    }
}
