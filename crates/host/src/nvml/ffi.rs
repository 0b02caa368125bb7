//! The functions of libnvidia-ml that are used, and everything unsafe about them. Signatures and sizes are those of
//! nvml.h, which have not changed since they came: NVIDIA gives a changed function another name (`_v2`).

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::Path;

use super::fault::{Fault, code};

/// Bytes of a card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CardMemory {
    /// All there are.
    pub total: u64,
    /// Those that anybody uses, the driver included.
    pub used: u64,
}

/// What a card is doing. What it does not tell is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CardSample {
    /// Share of the last moment (a sixth of a second to a second) in which a kernel ran, 0 to 1.
    pub utilisation: Option<f64>,
    /// Bytes in use, by whomever.
    pub memory_used: Option<u64>,
    /// Power of the whole card in watts.
    pub watts: Option<f64>,
    /// Clock of the multiprocessors in MHz.
    pub sm_mhz: Option<u32>,
    /// Joules since the driver was loaded.
    pub joules: Option<f64>,
    /// What holds the clocks back.
    pub throttling: Option<Throttling>,
}

/// What holds a card's clocks back: the bits of `nvmlClocksEventReasons`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Throttling(pub u64);

impl Throttling {
    /// `SwPowerCap` and `HwPowerBrakeSlowdown`.
    const POWER: u64 = 0x4 | 0x80;

    /// `SwThermalSlowdown` and `HwThermalSlowdown`.
    const HEAT: u64 = 0x20 | 0x40;

    /// `HwSlowdown`: power or heat, as older cards tell.
    const HARDWARE: u64 = 0x8;

    /// In a word, where it is for want of power or for heat. That a card idles, or that somebody has set its clocks, holds
    /// nothing back.
    pub fn why(self) -> Option<&'static str> {
        match self.0 {
            bits if bits & Self::HEAT != 0 => Some("heat"),
            bits if bits & Self::POWER != 0 => Some("power"),
            bits if bits & Self::HARDWARE != 0 => Some("power or heat"),
            _ => None,
        }
    }
}

/// Bytes a second over PCIe, in the 20 ms in which they were counted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pcie {
    /// Those that the card received: from the host, or from another card.
    pub received: f64,
    /// Those that it sent.
    pub sent: f64,
}

/// What a card can do at most. What it does not tell is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CardLimits {
    /// Highest clock of the multiprocessors in MHz.
    pub sm_mhz: Option<u32>,
    /// Highest clock of the memory in MHz.
    pub memory_mhz: Option<u32>,
    /// Width of the memory's bus in bits.
    pub memory_bus_bits: Option<u32>,
}

impl CardLimits {
    /// Bytes a second that the memory can move by its clock and its bus: two words of the bus's width a clock, as the driver
    /// counts clocks of GDDR and of HBM (an H100's 2,619 MHz and 5,120 bits are the 3.35 TB/s of its data sheet). No program
    /// reaches it.
    pub fn memory_bandwidth(&self) -> Option<f64> {
        let (mhz, bits) = (self.memory_mhz?, self.memory_bus_bits?);
        Some(2.0 * f64::from(mhz) * 1e6 * f64::from(bits) / 8.0).filter(|bandwidth| *bandwidth > 0.0)
    }
}

/// Who may compute on a card: `nvmlComputeMode_t`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ComputeMode {
    /// Everybody, at the same time.
    #[default]
    Shared,
    /// One process at a time: another one is refused.
    Exclusive,
    /// Nobody.
    Prohibited,
}

/// `nvmlDevice_t`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Handle(*mut c_void);

// SAFETY: NVML gives it out as a name of the card and never to be looked into, and says of all its functions that any
// thread may call them at any time ("thread-safe", NVML API reference, 1.1).
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

/// `nvmlMemory_t`.
#[repr(C)]
#[derive(Default)]
struct RawMemory {
    total: u64,
    free: u64,
    used: u64,
}

/// `nvmlUtilization_t`.
#[repr(C)]
#[derive(Default)]
struct RawUtilisation {
    gpu: c_uint,
    memory: c_uint,
}

/// `NVML_CLOCK_SM`.
const SM: c_uint = 1;

/// `NVML_CLOCK_MEM`.
const MEMORY: c_uint = 2;

/// `NVML_PCIE_UTIL_TX_BYTES`: as the card sees it.
const SENT: c_uint = 0;

/// `NVML_PCIE_UTIL_RX_BYTES`.
const RECEIVED: c_uint = 1;

/// Room for a text: NVML's largest constants are 96 bytes.
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

/// Those that were found in a library, which stays loaded until the process ends.
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
    // What only tells more.
    cuda: Option<Number>,
    compute_mode: Option<DeviceNumber>,
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
        // SAFETY: initialisers of the library run; it is the driver's, found by the system's loader or in places that
        // only root writes, or one that a test has made.
        let loaded = unsafe { libloading::Library::new(library) }.map_err(|error| {
            let why = error.to_string();
            match why.contains("No such file") && why.contains(&shown) {
                true => Fault::Missing { library: shown.clone() },
                false => Fault::Unusable { library: shown.clone(), why },
            }
        })?;
        // The driver's libraries start threads and register handlers: to unload them has crashed programs at their end.
        let library: &'static libloading::Library = Box::leak(Box::new(loaded));
        /// The function `$name`, and `None` where it is not there.
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
            // The second is what it was called before driver 535, and all have it.
            throttling: find!("nvmlDeviceGetCurrentClocksEventReasons")
                .or(find!("nvmlDeviceGetCurrentClocksThrottleReasons")),
            pcie: find!("nvmlDeviceGetPcieThroughput"),
            error_string: find!("nvmlErrorString"),
        })
    }

    pub fn init(&self) -> Result<(), u32> {
        // SAFETY: takes nothing; may be called as often as one likes, and counts.
        done(unsafe { (self.init)() })
    }

    pub fn shutdown(&self) {
        // SAFETY: for each init one. That it fails changes nothing.
        let _ = unsafe { (self.shutdown)() };
    }

    /// What the driver answered with, when it was asked to `doing`.
    pub fn fault(&self, doing: impl Into<String>, code: u32) -> Fault {
        let said = self.error_string.and_then(|error_string| {
            // SAFETY: takes any number and gives a text that is never freed.
            let text = unsafe { error_string(code) };
            // SAFETY: it ends with a zero, as every text of C.
            (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
        });
        let said = said.unwrap_or_else(|| "the driver refuses".to_string());
        Fault::Refused { doing: doing.into(), code, said }
    }

    pub fn driver(&self) -> Result<String, u32> {
        // SAFETY: `text` gives as much room as it says.
        text(|room, size| unsafe { (self.driver)(room, size) })
    }

    /// The newest CUDA that the driver knows, as 1000 times its major and 10 times its minor number.
    pub fn cuda(&self) -> Result<(u32, u32), u32> {
        let cuda = self.cuda.ok_or(code::FUNCTION_NOT_FOUND)?;
        let mut version = 0;
        // SAFETY: a place for the number.
        done(unsafe { cuda(&mut version) })?;
        let version = u32::try_from(version).map_err(|_| code::UNKNOWN)?;
        Ok((version / 1000, version % 1000 / 10))
    }

    pub fn compute_mode(&self, Handle(device): Handle) -> Result<ComputeMode, u32> {
        let compute_mode = self.compute_mode.ok_or(code::FUNCTION_NOT_FOUND)?;
        // SAFETY: a place for the number.
        Ok(match number(|place| unsafe { compute_mode(device, place) })? {
            // 1 was one thread at a time, which drivers do not have any more.
            1 | 3 => ComputeMode::Exclusive,
            2 => ComputeMode::Prohibited,
            _ => ComputeMode::Shared,
        })
    }

    pub fn count(&self) -> Result<u32, u32> {
        // SAFETY: a place for the number.
        number(|place| unsafe { (self.count)(place) })
    }

    pub fn device(&self, index: u32) -> Result<Handle, u32> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: a place for the handle.
        done(unsafe { (self.by_index)(index, &mut handle) })?;
        Ok(Handle(handle))
    }

    pub fn name(&self, Handle(device): Handle) -> Result<String, u32> {
        // SAFETY: the handle is the library's own; `text` gives as much room as it says.
        text(|room, size| unsafe { (self.name)(device, room, size) })
    }

    pub fn uuid(&self, Handle(device): Handle) -> Result<String, u32> {
        let uuid = self.uuid.ok_or(code::FUNCTION_NOT_FOUND)?;
        // SAFETY: as `name`.
        text(|room, size| unsafe { uuid(device, room, size) })
    }

    pub fn capability(&self, Handle(device): Handle) -> Result<(u32, u32), u32> {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: places for both numbers.
        done(unsafe { (self.capability)(device, &mut major, &mut minor) })?;
        u32::try_from(major).ok().zip(u32::try_from(minor).ok()).ok_or(code::UNKNOWN)
    }

    pub fn memory(&self, Handle(device): Handle) -> Result<CardMemory, u32> {
        let mut memory = RawMemory::default();
        // SAFETY: a place of the struct's size.
        done(unsafe { (self.memory)(device, &mut memory) })?;
        Ok(CardMemory { total: memory.total, used: memory.used })
    }

    pub fn is_partitioned(&self, Handle(device): Handle) -> Result<bool, u32> {
        let mig_mode = self.mig_mode.ok_or(code::FUNCTION_NOT_FOUND)?;
        let (mut now, mut after_reset) = (0, 0);
        // SAFETY: places for both numbers.
        done(unsafe { mig_mode(device, &mut now, &mut after_reset) })?;
        Ok(now == 1)
    }

    pub fn most_instances(&self, Handle(device): Handle) -> Result<u32, u32> {
        let most = self.most_instances.ok_or(code::FUNCTION_NOT_FOUND)?;
        // SAFETY: a place for the number.
        number(|place| unsafe { most(device, place) })
    }

    pub fn instance(&self, Handle(device): Handle, index: u32) -> Result<Handle, u32> {
        let instance = self.instance.ok_or(code::FUNCTION_NOT_FOUND)?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: a place for the handle.
        done(unsafe { instance(device, index, &mut handle) })?;
        Ok(Handle(handle))
    }

    /// The highest clocks of the multiprocessors and of the memory in MHz, and the width of the memory's bus in bits.
    pub fn limits(&self, Handle(device): Handle) -> CardLimits {
        let clock = |kind: c_uint| {
            let most = self.most_clock?;
            // SAFETY: a place for the number.
            number(|place| unsafe { most(device, kind, place) }).ok()
        };
        let bus = |width: DeviceNumber| {
            // SAFETY: a place for the number.
            number(|place| unsafe { width(device, place) }).ok()
        };
        CardLimits {
            sm_mhz: clock(SM),
            memory_mhz: clock(MEMORY),
            memory_bus_bits: self.bus_width.and_then(bus),
        }
    }

    /// Waits 20 ms for each direction while the driver counts. It tells KB, which are taken as 1,000 bytes.
    pub fn pcie(&self, Handle(device): Handle) -> Result<Pcie, u32> {
        let pcie = self.pcie.ok_or(code::FUNCTION_NOT_FOUND)?;
        let counted = |direction: c_uint| {
            // SAFETY: a place for the number.
            number(|place| unsafe { pcie(device, direction, place) })
                .map(|kilobytes| 1e3 * f64::from(kilobytes))
        };
        Ok(Pcie { received: counted(RECEIVED)?, sent: counted(SENT)? })
    }

    /// An error where all that the library can ask failed, and not only for want of such a figure.
    pub fn sample(&self, handle @ Handle(device): Handle) -> Result<CardSample, u32> {
        let mut failed = None;
        let mut keep = |code: u32| failed = failed.or(Some(code).filter(|code| *code != code::NOT_SUPPORTED));
        let mut sample = CardSample::default();
        if let Some(utilisation) = self.utilisation {
            let mut rates = RawUtilisation::default();
            // SAFETY: a place of the struct's size.
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
            // SAFETY: a place for the number.
            match number(|place| unsafe { power(device, place) }) {
                Ok(milliwatts) => sample.watts = Some(f64::from(milliwatts) / 1e3),
                Err(code) => keep(code),
            }
        }
        if let Some(clock) = self.clock {
            // SAFETY: a place for the number.
            match number(|place| unsafe { clock(device, SM, place) }) {
                Ok(mhz) => sample.sm_mhz = Some(mhz),
                Err(code) => keep(code),
            }
        }
        if let Some(energy) = self.energy {
            let mut millijoules = 0;
            // SAFETY: a place for the number.
            if done(unsafe { energy(device, &mut millijoules) }).is_ok() {
                sample.joules = Some(millijoules as f64 / 1e3);
            }
        }
        if let Some(throttling) = self.throttling {
            let mut bits = 0;
            // SAFETY: a place for the number.
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

/// The text that `call` writes, without what is no letter: it goes to terminals.
fn text(call: impl FnOnce(*mut c_char, c_uint) -> c_uint) -> Result<String, u32> {
    let mut room = [0 as c_char; ROOM];
    // The last byte stays zero, whatever the library writes.
    done(call(room.as_mut_ptr(), ROOM as c_uint - 1))?;
    let bytes: Vec<u8> = room.iter().map(|byte| *byte as u8).take_while(|byte| *byte != 0).collect();
    Ok(String::from_utf8_lossy(&bytes).chars().filter(|letter| !letter.is_control()).collect())
}
