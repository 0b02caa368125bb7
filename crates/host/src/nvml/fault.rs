//! What can be wrong with the library or the driver, and what mends it.

use std::fmt;

/// Numbers of `nvmlReturn_t` that have a meaning here.
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

/// Why the driver could not be asked. [`Display`](fmt::Display) says what was tried, why it failed and what mends it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The library is not there.
    Missing {
        /// What was looked for.
        library: String,
    },
    /// There is a file, and it cannot be loaded.
    Unusable {
        /// The file.
        library: String,
        /// What the system's loader says.
        why: String,
    },
    /// A function that every driver has is not in it: it is a stub, or of another program.
    Lacks {
        /// The file.
        library: String,
        /// Name of the function.
        function: &'static str,
    },
    /// The driver answered with an error.
    Refused {
        /// What was asked, after "cannot".
        doing: String,
        /// Number of `nvmlReturn_t`.
        code: u32,
        /// What the driver calls it.
        said: String,
    },
}

impl Fault {
    /// Whether another way to ask, nvidia-smi, may get further: it is so where the library is not as it should be. What
    /// the driver itself refuses it refuses to everybody.
    pub fn is_of_the_library(&self) -> bool {
        !matches!(self, Fault::Refused { .. })
    }

    /// Whether the card has no such figure, which is no fault of anything.
    pub fn is_not_supported(&self) -> bool {
        matches!(self, Fault::Refused { code: code::NOT_SUPPORTED, .. })
    }

    /// Whether the kernel's module and the library are of different versions.
    pub fn is_version_mismatch(&self) -> bool {
        matches!(self, Fault::Refused { code: code::VERSION_MISMATCH, .. })
    }

    /// What to do about it.
    pub fn mend(&self) -> &'static str {
        match self {
            Fault::Missing { .. } => {
                "install the driver's library of the loaded driver's version (Debian libnvidia-ml1, Ubuntu \
                 libnvidia-compute-…); in a container, start it with the NVIDIA container toolkit (`docker run --gpus all`)"
            }
            Fault::Unusable { .. } => "install the driver's packages again, those of this architecture",
            Fault::Lacks { .. } => {
                "it is a stub or damaged: take the CUDA toolkit's `stubs` folder off LD_LIBRARY_PATH, or install the \
                 driver's packages again"
            }
            Fault::Refused { code, .. } => match *code {
                code::NO_PERMISSION => {
                    "give this user access to /dev/nvidiactl and /dev/nvidia0 (`ls -l /dev/nvidia*` shows who has it); in \
                     a container, start it with `docker run --gpus all`"
                }
                code::DRIVER_NOT_LOADED => {
                    "load the driver (`sudo modprobe nvidia`), or install it; in a container, start it with \
                     `docker run --gpus all`"
                }
                code::VERSION_MISMATCH => {
                    "the driver was updated and the old one is still loaded: restart the machine (in a container, \
                     restart the container, so that it gets the host's library)"
                }
                code::GPU_IS_LOST => {
                    "it fell off the bus: `sudo dmesg | grep -i xid` says why; look at power and cooling, and restart the \
                     machine"
                }
                code::RESET_REQUIRED => {
                    "stop what uses it and run `sudo nvidia-smi --gpu-reset -i NUMBER`, or restart the machine"
                }
                code::LIBRARY_NOT_FOUND | code::FUNCTION_NOT_FOUND => "install the driver's packages again",
                code::TIMEOUT | code::IRQ_ISSUE => {
                    "`sudo dmesg | grep -i nvrm` says why; restart the machine where it stays so"
                }
                code::CORRUPTED_INFOROM => {
                    "the card's own memory of itself is damaged: have the card looked at"
                }
                code::OPERATING_SYSTEM | code::UNKNOWN => {
                    "in a container, restart it (a host that reloads systemd takes its devices away); else \
                     `sudo dmesg | grep -i nvrm` says why"
                }
                code::NOT_SUPPORTED => "this card does not tell it",
                _ => "`nvidia-smi` and `sudo dmesg | grep -i nvrm` may say more",
            },
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Missing { library } => write!(f, "{library} is not there")?,
            Fault::Unusable { library, why } => write!(f, "cannot load {library}: {why}")?,
            Fault::Lacks { library, function } => write!(f, "{library} has no function {function}")?,
            Fault::Refused { doing, code, said } => write!(f, "cannot {doing}: {said} (NVML error {code})")?,
        }
        write!(f, ": {}", self.mend())
    }
}

impl std::error::Error for Fault {}
