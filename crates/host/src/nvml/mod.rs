//! NVIDIA's driver, asked through its own library: which GPUs there are, what they are doing, and why they cannot be used.
//!
//! libnvidia-ml comes with the driver and not with the program, so it is loaded when it is asked for. Of its some 300
//! functions a dozen are looked up, those that every driver of the last ten years has; where one that only tells more is
//! missing, that is left out.
//!
//! Which file is loaded nobody can say by an environment variable of ours or by a flag: the system's loader looks for it,
//! as for every other library, and after that a few fixed places. Only code can name another ([`LibrarySource::At`]), which tests
//! do with the library of [`testing`].

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

/// Files that are there when a driver is loaded; the last is the one of WSL 2, which is there for any GPU.
pub const SIGNS: [&str; 3] = ["/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg"];

/// What is tried in turn: what the system's loader finds (the file that the driver brings; `libnvidia-ml.so` without a
/// number is the toolkit's stub), then where WSL, NixOS and some containers keep it.
const PLACES: [&str; 4] = [
    "libnvidia-ml.so.1",
    "/usr/lib/wsl/lib/libnvidia-ml.so.1",
    "/run/opengl-driver/lib/libnvidia-ml.so.1",
    "/usr/local/nvidia/lib64/libnvidia-ml.so.1",
];

/// Where the library is looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LibrarySource {
    /// Where the driver puts it.
    System,
    /// In this file.
    At(PathBuf),
}

/// Whether a driver seems to be loaded on this machine; costs three looks into the file system.
pub fn driver_seems_loaded() -> bool {
    SIGNS.iter().any(|sign| Path::new(sign).exists())
}

/// The driver, at hand as long as this lives.
#[derive(Debug)]
pub struct Nvml {
    functions: Functions,
}

impl Nvml {
    /// Loads the library and starts it. Takes some tens of milliseconds, with sleeping GPUs seconds, and for ever where
    /// the driver hangs: whoever cannot wait calls it in a thread of its own.
    ///
    /// # Errors
    /// What is wrong with the library or the driver, and its mend.
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

    /// Version of the kernel's driver: `570.133.07`.
    pub fn driver(&self) -> Result<String, Fault> {
        self.functions.driver().map_err(|code| self.functions.fault("read the driver's version", code))
    }

    /// The newest CUDA that the driver knows, major and minor number: `(12, 8)`. `None` where it does not tell.
    pub fn cuda(&self) -> Option<(u32, u32)> {
        self.functions.cuda().ok()
    }

    /// Every card, in the order of their places on the bus; one that is lost is a fault in its place.
    pub fn devices(&self) -> Result<Vec<Result<Device<'_>, Fault>>, Fault> {
        let count = self.functions.count().map_err(|code| self.functions.fault("count the GPUs", code))?;
        // More than that nobody has, and a stub may say anything.
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

/// A card, or a part of one that MIG has cut off.
#[derive(Debug)]
pub struct Device<'a> {
    nvml: &'a Nvml,
    handle: Handle,
    label: String,
}

impl Device<'_> {
    /// Marketing name: `NVIDIA H100 80GB HBM3`.
    pub fn name(&self) -> Result<String, Fault> {
        self.nvml.functions.name(self.handle).map_err(|code| self.fault("name", code))
    }

    /// Major and minor number of its compute capability.
    pub fn capability(&self) -> Result<(u32, u32), Fault> {
        self.nvml.functions.capability(self.handle).map_err(|code| self.fault("compute capability", code))
    }

    /// Its memory. Cards that share the CPU's (GB10, Jetson) do not tell.
    pub fn memory(&self) -> Result<CardMemory, Fault> {
        self.nvml.functions.memory(self.handle).map_err(|code| self.fault("memory", code))
    }

    /// Who may compute on it. A driver that does not tell has nobody excluded.
    pub fn compute_mode(&self) -> ComputeMode {
        self.nvml.functions.compute_mode(self.handle).unwrap_or_default()
    }

    /// `GPU-…` or `MIG-…`; `None` where the driver does not tell.
    pub fn uuid(&self) -> Option<String> {
        self.nvml.functions.uuid(self.handle).ok()
    }

    /// Whether MIG is on. Cards that have none say no.
    pub fn is_partitioned(&self) -> bool {
        self.nvml.functions.is_partitioned(self.handle).unwrap_or(false)
    }

    /// The parts that MIG has made of it.
    pub fn instances(&self) -> Vec<Device<'_>> {
        let Ok(most) = self.nvml.functions.most_instances(self.handle) else { return Vec::new() };
        let instance = |index: u32| {
            let handle = self.nvml.functions.instance(self.handle, index).ok()?;
            Some(Device { nvml: self.nvml, handle, label: format!("instance {index} of {}", self.label) })
        };
        (0..most.min(64)).filter_map(instance).collect()
    }

    /// What it is doing now. Costs some tens of microseconds.
    ///
    /// # Errors
    /// Only where the card answers nothing any more; a figure that it does not have is absent.
    pub fn sample(&self) -> Result<CardSample, Fault> {
        self.nvml.functions.sample(self.handle).map_err(|code| self.fault("state", code))
    }

    /// What goes over PCIe now. Takes 40 ms, in which the driver counts: not for whoever must not wait.
    ///
    /// # Errors
    /// Where it is not told: in a virtual machine with a part of a card (vGPU), or by an old card.
    pub fn pcie(&self) -> Result<Pcie, Fault> {
        self.nvml.functions.pcie(self.handle).map_err(|code| self.fault("PCIe traffic", code))
    }

    /// What it can do at most.
    pub fn limits(&self) -> CardLimits {
        self.nvml.functions.limits(self.handle)
    }

    fn fault(&self, what: &str, code: u32) -> Fault {
        self.nvml.functions.fault(format!("read the {what} of {}", self.label), code)
    }
}
