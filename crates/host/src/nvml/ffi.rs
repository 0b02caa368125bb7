//! Bindings to libnvidia-ml, with all unsafe code for it. Signatures and sizes match nvml.h. The signatures never
//! change, because NVIDIA gives a changed function another name (`_v2`).

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::Path;

use super::fault::{Fault, code};

/// Memory of a GPU, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CardMemory {
    /// Total memory.
    pub total: u64,
    /// Memory used by all processes and the driver.
    pub used: u64,
}

/// Current load of a GPU. Values that the driver does not report are `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CardSample {
    /// Fraction of the driver's last averaging interval (a sixth of a second to a second) in which a kernel ran, 0 to
    /// 1.
    pub utilisation: Option<f64>,
    /// Memory in use by all processes, in bytes.
    pub memory_used: Option<u64>,
    /// Power of the whole GPU board, in watts.
    pub watts: Option<f64>,
    /// Clock of the multiprocessors, in MHz.
    pub sm_mhz: Option<u32>,
    /// Energy since the driver was loaded, in joules.
    pub joules: Option<f64>,
    /// Reasons for reduced clocks.
    pub throttling: Option<Throttling>,
}

/// Reasons for a GPU's reduced clocks: the bits of `nvmlClocksEventReasons`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Throttling(pub u64);

impl Throttling {
    /// Bits `SwPowerCap` and `HwPowerBrakeSlowdown`.
    const POWER: u64 = 0x4 | 0x80;

    /// Bits `SwThermalSlowdown` and `HwThermalSlowdown`.
    const HEAT: u64 = 0x20 | 0x40;

    /// Bit `HwSlowdown`: power or heat, on older GPUs.
    const HARDWARE: u64 = 0x8;

    /// Returns the cause in one word if power or heat limits the clocks. Idle GPUs and clocks set by a user are not
    /// throttling.
    pub fn why(self) -> Option<&'static str> {
        match self.0 {
            bits if bits & Self::HEAT != 0 => Some("heat"),
            bits if bits & Self::POWER != 0 => Some("power"),
            bits if bits & Self::HARDWARE != 0 => Some("power or heat"),
            _ => None,
        }
    }
}

/// PCIe throughput in bytes per second, averaged over 20 ms.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pcie {
    /// Throughput to the GPU, from the host or from another GPU.
    pub received: f64,
    /// Throughput from the GPU.
    pub sent: f64,
}

/// Hardware limits of a GPU. Limits that the driver does not report are `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CardLimits {
    /// Maximum clock of the multiprocessors, in MHz.
    pub sm_mhz: Option<u32>,
    /// Maximum clock of the memory, in MHz.
    pub memory_mhz: Option<u32>,
    /// Width of the memory bus, in bits.
    pub memory_bus_bits: Option<u32>,
}

impl CardLimits {
    /// Returns the theoretical memory bandwidth in bytes per second: the bus width times two transfers per clock.
    /// This matches how the driver reports GDDR and HBM clocks. An H100's 2,619 MHz and 5,120 bits give the 3.35
    /// TB/s of its data sheet. No program reaches this bandwidth.
    pub fn memory_bandwidth(&self) -> Option<f64> {
        let (mhz, bits) = (self.memory_mhz?, self.memory_bus_bits?);
        Some(2.0 * f64::from(mhz) * 1e6 * f64::from(bits) / 8.0).filter(|bandwidth| *bandwidth > 0.0)
    }
}

/// Restriction on the processes that may compute on a GPU: `nvmlComputeMode_t`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ComputeMode {
    /// All processes, at the same time.
    #[default]
    Shared,
    /// One process at a time; others are rejected.
    Exclusive,
    /// No process.
    Prohibited,
}

/// Device handle, `nvmlDevice_t`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Handle(*mut c_void);

// SAFETY: NVML treats the handle as an opaque name of the GPU. NVML documents that any thread may call any function
// at any time ("thread-safe", NVML API reference, 1.1).
unsafe impl Send for Handle {}
// SAFETY: the reason given for `Send` applies.
unsafe impl Sync for Handle {}

/// Struct `nvmlMemory_t`.
#[repr(C)]
#[derive(Default)]
struct RawMemory {
    total: u64,
    free: u64,
    used: u64,
}

/// Struct `nvmlUtilization_t`.
#[repr(C)]
#[derive(Default)]
struct RawUtilisation {
    gpu: c_uint,
    memory: c_uint,
}

/// Constant `NVML_CLOCK_SM`.
const SM: c_uint = 1;

/// Constant `NVML_CLOCK_MEM`.
const MEMORY: c_uint = 2;

/// Constant `NVML_PCIE_UTIL_TX_BYTES`, from the GPU's point of view.
const SENT: c_uint = 0;

/// Constant `NVML_PCIE_UTIL_RX_BYTES`.
const RECEIVED: c_uint = 1;

/// Buffer size for a text: NVML's largest constants are 96 bytes.
const ROOM: usize = 256;

type Plain = unsafe extern "C" fn() -> c_uint;
type Number = unsafe extern "C" fn(*mut c_int) -> c_uint;
type Text = unsafe extern "C" fn(*mut c_char, c_uint) -> c_uint;
type Count = unsafe extern "C" fn(*mut c_uint) -> c_uint;
type ByIndex = unsafe extern "C" fn(c_uint, *mut *mut c_void) -> c_uint;
type DeviceText = unsafe extern "C" fn(*mut c_void, *mut c_char, c_uint) -> c_uint;
type DeviceNumber = unsafe extern "C" fn(*mut c_void, *mut c_uint) -> c_uint;
type DevicePair = unsafe extern "C" fn(*mut c_void, *mut c_uint, *mut c_uint) -> c_uint;
type DeviceLong = unsafe extern "C" fn(*mut c_void, *mut u64) -> c_uint;
type Capability = unsafe extern "C" fn(*mut c_void, *mut c_int, *mut c_int) -> c_uint;
type DeviceMemory = unsafe extern "C" fn(*mut c_void, *mut RawMemory) -> c_uint;
type Utilisation = unsafe extern "C" fn(*mut c_void, *mut RawUtilisation) -> c_uint;
type Clock = unsafe extern "C" fn(*mut c_void, c_uint, *mut c_uint) -> c_uint;
type Instance = unsafe extern "C" fn(*mut c_void, c_uint, *mut *mut c_void) -> c_uint;
type ErrorString = unsafe extern "C" fn(c_uint) -> *const c_char;

/// Functions found in a library, which stays loaded until the process ends.
#[derive(Debug)]
pub(crate) struct Functions {
    init: Plain,
    shutdown: Plain,
    driver: Text,
    count: Count,
    by_index: ByIndex,
    name: DeviceText,
    capability: Capability,
    memory: DeviceMemory,
    // The following functions are optional.
    cuda: Option<Number>,
    compute_mode: Option<DeviceNumber>,
    persistence_mode: Option<DeviceNumber>,
    performance_state: Option<DeviceNumber>,
    uuid: Option<DeviceText>,
    mig_mode: Option<DevicePair>,
    most_instances: Option<DeviceNumber>,
    instance: Option<Instance>,
    utilisation: Option<Utilisation>,
    power: Option<DeviceNumber>,
    energy: Option<DeviceLong>,
    clock: Option<Clock>,
    most_clock: Option<Clock>,
    bus_width: Option<DeviceNumber>,
    throttling: Option<DeviceLong>,
    pcie: Option<Clock>,
    error_string: Option<ErrorString>,
}

impl Functions {
    pub fn load(library: &Path) -> Result<Self, Fault> {
        let shown = library.display().to_string();
        if library.is_absolute() && !library.exists() {
            return Err(Fault::Missing { library: shown });
        }
        // SAFETY: loading runs the library's initialisers. The library is the driver's, found by the system's loader
        // or in places that only root can write to, or a library created by a test.
        let loaded = unsafe { libloading::Library::new(library) }.map_err(|error| {
            let why = error.to_string();
            match why.contains("No such file") && why.contains(&shown) {
                true => Fault::Missing { library: shown.clone() },
                false => Fault::Unusable { library: shown.clone(), why },
            }
        })?;
        // The library is never unloaded: the driver's libraries start threads and register handlers, and unloading
        // them has crashed programs at exit.
        let library: &'static libloading::Library = Box::leak(Box::new(loaded));
        /// Looks up the function `$name`; `None` if the library lacks the function.
        macro_rules! find {
            ($name:literal) => {
                // SAFETY: the field's type is the signature in nvml.h.
                unsafe { library.get(concat!($name, "\0").as_bytes()) }.ok().map(|symbol| *symbol)
            };
        }
        macro_rules! need {
            ($name:literal) => {
                find!($name).ok_or(Fault::Lacks { library: shown.clone(), function: $name })?
            };
        }
        Ok(Self {
            init: need!("nvmlInit_v2"),
            shutdown: need!("nvmlShutdown"),
            driver: need!("nvmlSystemGetDriverVersion"),
            count: need!("nvmlDeviceGetCount_v2"),
            by_index: need!("nvmlDeviceGetHandleByIndex_v2"),
            name: need!("nvmlDeviceGetName"),
            capability: need!("nvmlDeviceGetCudaComputeCapability"),
            memory: need!("nvmlDeviceGetMemoryInfo"),
            cuda: find!("nvmlSystemGetCudaDriverVersion_v2").or(find!("nvmlSystemGetCudaDriverVersion")),
            compute_mode: find!("nvmlDeviceGetComputeMode"),
            persistence_mode: find!("nvmlDeviceGetPersistenceMode"),
            performance_state: find!("nvmlDeviceGetPerformanceState"),
            uuid: find!("nvmlDeviceGetUUID"),
            mig_mode: find!("nvmlDeviceGetMigMode"),
            most_instances: find!("nvmlDeviceGetMaxMigDeviceCount"),
            instance: find!("nvmlDeviceGetMigDeviceHandleByIndex"),
            utilisation: find!("nvmlDeviceGetUtilizationRates"),
            power: find!("nvmlDeviceGetPowerUsage"),
            energy: find!("nvmlDeviceGetTotalEnergyConsumption"),
            clock: find!("nvmlDeviceGetClockInfo"),
            most_clock: find!("nvmlDeviceGetMaxClockInfo"),
            bus_width: find!("nvmlDeviceGetMemoryBusWidth"),
            // The second name is older (before driver 535), and all drivers still support it.
            throttling: find!("nvmlDeviceGetCurrentClocksEventReasons")
                .or(find!("nvmlDeviceGetCurrentClocksThrottleReasons")),
            pcie: find!("nvmlDeviceGetPcieThroughput"),
            error_string: find!("nvmlErrorString"),
        })
    }

    pub fn init(&self) -> Result<(), u32> {
        // SAFETY: the function takes no arguments. NVML counts the calls, so repeated calls are allowed.
        done(unsafe { (self.init)() })
    }

    pub fn shutdown(&self) {
        // SAFETY: this function is called once for each call of `init`. A failure has no consequences.
        let _ = unsafe { (self.shutdown)() };
    }

    /// Creates the fault for error `code` of the action `doing`.
    pub fn fault(&self, doing: impl Into<String>, code: u32) -> Fault {
        let said = self.error_string.and_then(|error_string| {
            // SAFETY: the function accepts any number and returns a static text.
            let text = unsafe { error_string(code) };
            // SAFETY: the text is a NUL-terminated C string.
            (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
        });
        let said = said.unwrap_or_else(|| "the driver reported an error".to_string());
        Fault::Refused { doing: doing.into(), code, said }
    }

    pub fn driver(&self) -> Result<String, u32> {
        // SAFETY: `text` passes the size of its buffer.
        text(|room, size| unsafe { (self.driver)(room, size) })
    }

    /// Returns the newest CUDA version that the driver supports. NVML encodes the version as 1000 times the major
    /// number plus 10 times the minor number.
    pub fn cuda(&self) -> Result<(u32, u32), u32> {
        let cuda = self.cuda.ok_or(code::FUNCTION_NOT_FOUND)?;
        let mut version = 0;
        // SAFETY: the pointer refers to a live number.
        done(unsafe { cuda(&mut version) })?;
        let version = u32::try_from(version).map_err(|_| code::UNKNOWN)?;
        Ok((version / 1000, version % 1000 / 10))
    }

    pub fn compute_mode(&self, Handle(device): Handle) -> Result<ComputeMode, u32> {
        let compute_mode = self.compute_mode.ok_or(code::FUNCTION_NOT_FOUND)?;
        // SAFETY: the pointer refers to a live number.
        Ok(match number(|place| unsafe { compute_mode(device, place) })? {
            // The value 1 meant one thread at a time, which current drivers no longer support.
            1 | 3 => ComputeMode::Exclusive,
            2 => ComputeMode::Prohibited,
            _ => ComputeMode::Shared,
        })
    }

    pub fn persistence_mode(&self, Handle(device): Handle) -> Result<bool, u32> {
        let persistence_mode = self.persistence_mode.ok_or(code::FUNCTION_NOT_FOUND)?;
        // SAFETY: the pointer refers to a live number.
        number(|place| unsafe { persistence_mode(device, place) }).map(|mode| mode == 1)
    }

    pub fn performance_state(&self, Handle(device): Handle) -> Result<u32, u32> {
        /// Constant `NVML_PSTATE_UNKNOWN`.
        const UNKNOWN: u32 = 32;
        let performance_state = self.performance_state.ok_or(code::FUNCTION_NOT_FOUND)?;
        // SAFETY: the pointer refers to a live number.
        let state = number(|place| unsafe { performance_state(device, place) })?;
        if state == UNKNOWN { Err(code::UNKNOWN) } else { Ok(state) }
    }

    pub fn count(&self) -> Result<u32, u32> {
        // SAFETY: the pointer refers to a live number.
        number(|place| unsafe { (self.count)(place) })
    }

    pub fn device(&self, index: u32) -> Result<Handle, u32> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: the pointer refers to a live handle.
        done(unsafe { (self.by_index)(index, &mut handle) })?;
        Ok(Handle(handle))
    }

    pub fn name(&self, Handle(device): Handle) -> Result<String, u32> {
        // SAFETY: the handle comes from the library; `text` passes the size of its buffer.
        text(|room, size| unsafe { (self.name)(device, room, size) })
    }

    pub fn uuid(&self, Handle(device): Handle) -> Result<String, u32> {
        let uuid = self.uuid.ok_or(code::FUNCTION_NOT_FOUND)?;
        // SAFETY: as in `name`.
        text(|room, size| unsafe { uuid(device, room, size) })
    }

    pub fn capability(&self, Handle(device): Handle) -> Result<(u32, u32), u32> {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both pointers refer to live numbers.
        done(unsafe { (self.capability)(device, &mut major, &mut minor) })?;
        u32::try_from(major).ok().zip(u32::try_from(minor).ok()).ok_or(code::UNKNOWN)
    }

    pub fn memory(&self, Handle(device): Handle) -> Result<CardMemory, u32> {
        let mut memory = RawMemory::default();
        // SAFETY: the pointer refers to a live struct of the right size.
        done(unsafe { (self.memory)(device, &mut memory) })?;
        Ok(CardMemory { total: memory.total, used: memory.used })
    }

    pub fn is_partitioned(&self, Handle(device): Handle) -> Result<bool, u32> {
        let mig_mode = self.mig_mode.ok_or(code::FUNCTION_NOT_FOUND)?;
        let (mut now, mut after_reset) = (0, 0);
        // SAFETY: both pointers refer to live numbers.
        done(unsafe { mig_mode(device, &mut now, &mut after_reset) })?;
        Ok(now == 1)
    }

    pub fn most_instances(&self, Handle(device): Handle) -> Result<u32, u32> {
        let most = self.most_instances.ok_or(code::FUNCTION_NOT_FOUND)?;
        // SAFETY: the pointer refers to a live number.
        number(|place| unsafe { most(device, place) })
    }

    pub fn instance(&self, Handle(device): Handle, index: u32) -> Result<Handle, u32> {
        let instance = self.instance.ok_or(code::FUNCTION_NOT_FOUND)?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the pointer refers to a live handle.
        done(unsafe { instance(device, index, &mut handle) })?;
        Ok(Handle(handle))
    }

    /// Returns the maximum clocks of the multiprocessors and of the memory, and the width of the memory bus.
    pub fn limits(&self, Handle(device): Handle) -> CardLimits {
        let clock = |kind: c_uint| {
            let most = self.most_clock?;
            // SAFETY: the pointer refers to a live number.
            number(|place| unsafe { most(device, kind, place) }).ok()
        };
        let bus = |width: DeviceNumber| {
            // SAFETY: the pointer refers to a live number.
            number(|place| unsafe { width(device, place) }).ok()
        };
        CardLimits {
            sm_mhz: clock(SM),
            memory_mhz: clock(MEMORY),
            memory_bus_bits: self.bus_width.and_then(bus),
        }
    }

    /// Measures PCIe throughput, 20 ms for each direction. The driver reports KB/s, with 1 KB as 1,000 bytes.
    pub fn pcie(&self, Handle(device): Handle) -> Result<Pcie, u32> {
        let pcie = self.pcie.ok_or(code::FUNCTION_NOT_FOUND)?;
        let counted = |direction: c_uint| {
            // SAFETY: the pointer refers to a live number.
            number(|place| unsafe { pcie(device, direction, place) })
                .map(|kilobytes| 1e3 * f64::from(kilobytes))
        };
        Ok(Pcie { received: counted(RECEIVED)?, sent: counted(SENT)? })
    }

    /// Samples the GPU. Fails if every query failed for a reason other than missing support.
    pub fn sample(&self, handle @ Handle(device): Handle) -> Result<CardSample, u32> {
        let mut failed = None;
        let mut keep = |code: u32| failed = failed.or(Some(code).filter(|code| *code != code::NOT_SUPPORTED));
        let mut sample = CardSample::default();
        if let Some(utilisation) = self.utilisation {
            let mut rates = RawUtilisation::default();
            // SAFETY: the pointer refers to a live struct of the right size.
            match done(unsafe { utilisation(device, &mut rates) }) {
                Ok(()) => sample.utilisation = Some(f64::from(rates.gpu.min(100)) / 100.0),
                Err(code) => keep(code),
            }
        }
        match self.memory(handle) {
            Ok(memory) => sample.memory_used = Some(memory.used),
            Err(code) => keep(code),
        }
        if let Some(power) = self.power {
            // SAFETY: the pointer refers to a live number.
            match number(|place| unsafe { power(device, place) }) {
                Ok(milliwatts) => sample.watts = Some(f64::from(milliwatts) / 1e3),
                Err(code) => keep(code),
            }
        }
        if let Some(clock) = self.clock {
            // SAFETY: the pointer refers to a live number.
            match number(|place| unsafe { clock(device, SM, place) }) {
                Ok(mhz) => sample.sm_mhz = Some(mhz),
                Err(code) => keep(code),
            }
        }
        if let Some(energy) = self.energy {
            let mut millijoules = 0;
            // SAFETY: the pointer refers to a live number.
            if done(unsafe { energy(device, &mut millijoules) }).is_ok() {
                sample.joules = Some(millijoules as f64 / 1e3);
            }
        }
        if let Some(throttling) = self.throttling {
            let mut bits = 0;
            // SAFETY: the pointer refers to a live number.
            if done(unsafe { throttling(device, &mut bits) }).is_ok() {
                sample.throttling = Some(Throttling(bits));
            }
        }
        match failed {
            Some(code) if sample == CardSample::default() => Err(code),
            _ => Ok(sample),
        }
    }
}

fn done(code: c_uint) -> Result<(), u32> {
    if code == 0 { Ok(()) } else { Err(code) }
}

fn number(call: impl FnOnce(*mut c_uint) -> c_uint) -> Result<u32, u32> {
    let mut number = 0;
    done(call(&mut number))?;
    Ok(number)
}

/// Returns the text that `call` writes, without control characters, because it may be printed to terminals.
fn text(call: impl FnOnce(*mut c_char, c_uint) -> c_uint) -> Result<String, u32> {
    let mut room = [0 as c_char; ROOM];
    // The library may write all bytes except the last, which therefore remains zero.
    done(call(room.as_mut_ptr(), ROOM as c_uint - 1))?;
    let bytes: Vec<u8> = room.iter().map(|byte| *byte as u8).take_while(|byte| *byte != 0).collect();
    Ok(String::from_utf8_lossy(&bytes).chars().filter(|letter| !letter.is_control()).collect())
}
