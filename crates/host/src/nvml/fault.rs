//! Faults of the library or the driver, with hints for the user.

use std::fmt;

/// Values of `nvmlReturn_t` that are used here.
pub(crate) mod code {
    pub const NOT_SUPPORTED: u32 = 3;
    pub const NO_PERMISSION: u32 = 4;
    pub const DRIVER_NOT_LOADED: u32 = 9;
    pub const TIMEOUT: u32 = 10;
    pub const IRQ_ISSUE: u32 = 11;
    pub const LIBRARY_NOT_FOUND: u32 = 12;
    pub const FUNCTION_NOT_FOUND: u32 = 13;
    pub const CORRUPTED_INFOROM: u32 = 14;
    pub const GPU_IS_LOST: u32 = 15;
    pub const RESET_REQUIRED: u32 = 16;
    pub const OPERATING_SYSTEM: u32 = 17;
    pub const VERSION_MISMATCH: u32 = 18;
    pub const UNKNOWN: u32 = 999;
}

/// Reason why the driver could not be queried. [`Display`](fmt::Display) states the action, the cause and a hint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The library was not found.
    Missing {
        /// Name of the library.
        library: String,
    },
    /// The file exists but cannot be loaded.
    Unusable {
        /// Path of the file.
        library: String,
        /// Error from the system's loader.
        why: String,
    },
    /// The library lacks a function that every driver has: the library is a stub, or belongs to another program.
    Lacks {
        /// Path of the file.
        library: String,
        /// Name of the missing function.
        function: &'static str,
    },
    /// The driver returned an error.
    Refused {
        /// Attempted action, worded to follow "cannot".
        doing: String,
        /// Value of `nvmlReturn_t`.
        code: u32,
        /// Description of the error by the driver.
        said: String,
    },
}

impl Fault {
    /// True if the library itself is faulty, so that nvidia-smi may succeed. An error from the driver would affect
    /// every method.
    pub fn is_of_the_library(&self) -> bool {
        !matches!(self, Fault::Refused { .. })
    }

    /// True if the GPU does not support the query, which is not a fault.
    pub fn is_not_supported(&self) -> bool {
        matches!(self, Fault::Refused { code: code::NOT_SUPPORTED, .. })
    }

    /// True if the kernel module and the library have different versions.
    pub fn is_version_mismatch(&self) -> bool {
        matches!(self, Fault::Refused { code: code::VERSION_MISMATCH, .. })
    }

    /// Returns a hint for the user.
    pub fn mend(&self) -> &'static str {
        match self {
            Fault::Missing { .. } => {
                "install the driver's library in the same version as the loaded \
                 driver (Debian libnvidia-ml1, \
                 Ubuntu libnvidia-compute-…); start containers with the NVIDIA container toolkit (`docker \
                 run --gpus all`)"
            }
            Fault::Unusable { .. } => "reinstall the driver's packages for this architecture",
            Fault::Lacks { .. } => {
                "the library is a stub or damaged: remove the CUDA toolkit's `stubs` folder from \
                 LD_LIBRARY_PATH, or reinstall the driver's packages"
            }
            Fault::Refused { code, .. } => match *code {
                code::NO_PERMISSION => {
                    "give this user access to /dev/nvidiactl and /dev/nvidia0 (`ls -l /dev/nvidia*` shows \
                     who has access); start containers with `docker run --gpus all`"
                }
                code::DRIVER_NOT_LOADED => {
                    "load the driver (`sudo modprobe nvidia`), or install the driver; start containers with \
                     `docker run --gpus all`"
                }
                code::VERSION_MISMATCH => {
                    "the driver was updated, but the old driver is still loaded: restart the machine; if \
                     only a container is affected, restart the container to get the host's library"
                }
                code::GPU_IS_LOST => {
                    "the GPU fell off the bus: see `sudo dmesg | grep -i xid`, check power and cooling, and \
                     restart the machine"
                }
                code::RESET_REQUIRED => {
                    "stop the programs that use the GPU and run `sudo nvidia-smi --gpu-reset -i NUMBER`, or \
                     restart the machine"
                }
                code::LIBRARY_NOT_FOUND | code::FUNCTION_NOT_FOUND => "reinstall the driver's packages",
                code::TIMEOUT | code::IRQ_ISSUE => {
                    "see `sudo dmesg | grep -i nvrm`, and restart the machine if the problem persists"
                }
                code::CORRUPTED_INFOROM => "the GPU's InfoROM is damaged: have the GPU repaired or replaced",
                code::OPERATING_SYSTEM | code::UNKNOWN => {
                    "in a container, restart the container (reloading systemd on the host removes the \
                     container's devices); otherwise see `sudo dmesg | grep -i nvrm`"
                }
                code::NOT_SUPPORTED => "this GPU does not support the query",
                _ => "see `nvidia-smi` and `sudo dmesg | grep -i nvrm`",
            },
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Missing { library } => write!(f, "cannot find {library}")?,
            Fault::Unusable { library, why } => write!(f, "cannot load {library}: {why}")?,
            Fault::Lacks { library, function } => write!(f, "{library} has no function {function}")?,
            Fault::Refused { doing, code, said } => write!(f, "cannot {doing}: {said} (NVML error {code})")?,
        }
        write!(f, ": {}", self.mend())
    }
}

impl std::error::Error for Fault {}
