//! Devices of this machine and of workers.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::sync::{Mutex, OnceLock, PoisonError};

use build_info::Bytes;
use build_info::device::Cuda;
use llama_sys as sys;

use crate::error::{Error, Result};
use crate::message::{Message, owned};
use crate::options::CudaWait;
use crate::system::start_all;

/// Maximum number of devices for one model: the value of `llama_max_devices`.
pub const MAX_DEVICES: usize = 16;

/// Kind of a compute device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// CPU, or a library that computes on the CPU.
    Cpu,
    /// GPU, with or without its own memory, or a device of a worker.
    Gpu,
}

impl DeviceKind {
    /// Returns the name of the kind in JSON.
    pub fn name(self) -> &'static str {
        match self {
            DeviceKind::Cpu => "cpu",
            DeviceKind::Gpu => "gpu",
        }
    }
}

/// Compute device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Index in ggml's list. ggml only appends devices to the list, so the index stays valid.
    pub index: usize,
    /// Name in ggml: `CPU`, `CUDA0`, `RPC0`.
    pub name: String,
    /// Name of the CPU or GPU; for a worker, its address.
    pub description: String,
    /// Backend of ggml that computes on the device: `CPU`, `CUDA`, `RPC`.
    pub backend: String,
    /// Kind of the device, as reported by llama.cpp.
    pub kind: DeviceKind,
    /// True for a GPU without its own memory.
    pub shares_memory: bool,
}

impl Device {
    /// True if the device belongs to another machine or process.
    pub fn is_remote(&self) -> bool {
        self.backend == "RPC"
    }

    /// Returns the reason why this process cannot compute on the device; `None` if it can.
    ///
    /// llama.cpp lists a GPU even if another process uses the GPU exclusively, if its memory is full, or if the program
    /// has no code for its architecture. llama.cpp notices such a fault only when a model is loaded or evaluated, and
    /// then aborts the process. Therefore, this function queries CUDA once. The query creates CUDA's context on the
    /// GPU, which takes a few hundred MiB and a few hundred milliseconds.
    pub fn fault(&self) -> Option<String> {
        static FOUND: Mutex<BTreeMap<usize, Option<String>>> = Mutex::new(BTreeMap::new());
        let ordinal = self.ordinal()?;
        let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
        found.entry(self.index).or_insert_with(|| open(ordinal)).clone()
    }

    /// Returns the index among the NVIDIA GPUs, in ggml's order; `None` for any other device.
    fn ordinal(&self) -> Option<i32> {
        self.name.strip_prefix("CUDA").filter(|_| self.backend == "CUDA")?.parse().ok()
    }

    /// Returns the total and the free memory. Returns `None` if the device does not report its memory or cannot be
    /// used. Queries the driver of a GPU, or the worker.
    pub fn memory(&self) -> Option<(Bytes, Bytes)> {
        if self.fault().is_some() {
            return None;
        }
        let (mut free, mut total) = (0, 0);
        // SAFETY: the index is in the list, which only grows.
        unsafe { sys::ggml_backend_dev_memory(self.raw(), &mut free, &mut total) };
        (total > 0).then_some((Bytes(total as u64), Bytes(free as u64)))
    }

    pub(super) fn raw(&self) -> sys::ggml_backend_dev_t {
        // SAFETY: the index is in the list, which only grows.
        unsafe { sys::ggml_backend_dev_get(self.index) }
    }
}

/// CUDA version and architectures that the program was compiled for, from its build record. [`Device::fault`]
/// compares them with the GPU.
static MADE_FOR: OnceLock<Cuda> = OnceLock::new();

/// Sets the CUDA version and architectures that the program was compiled for. Only the first call has an effect.
pub fn made_for(cuda: &Cuda) {
    MADE_FOR.get_or_init(|| cuda.clone());
}

/// Creates CUDA's context on the GPU with the index `ordinal`. Returns the reason if the GPU cannot be used.
fn open(ordinal: i32) -> Option<String> {
    let wait = match CudaWait::of_environment() {
        Ok(Some(CudaWait::Spin)) => sys::ANNEAL_CUDA_WAIT_SPIN,
        Ok(Some(CudaWait::Block)) => sys::ANNEAL_CUDA_WAIT_BLOCK,
        // An invalid value was reported when the settings were resolved.
        Ok(Some(CudaWait::Auto) | None) | Err(_) => sys::ANNEAL_CUDA_WAIT_AUTO,
    };
    let mut capability = 0;
    let mut message = Message::new();
    let (err, err_size) = message.parts();
    // SAFETY: the call writes a number and a message of at most the given size; both outlive the call.
    let opened = unsafe { sys::anneal_cuda_open(ordinal, wait, &mut capability, err, err_size) };
    match opened {
        true => foreign(MADE_FOR.get(), capability.unsigned_abs()),
        false => Some(message.text()),
    }
}

/// Returns the reason why a program that was compiled for the architectures in `made` cannot run on a GPU. `capability`
/// is ten times the GPU's compute capability; 0 means unknown.
fn foreign(made: Option<&Cuda>, capability: u32) -> Option<String> {
    let (major, minor) = (capability / 10, capability % 10);
    let made = made.filter(|made| capability > 0 && made.runs_on((major, minor)) == Some(false))?;
    Some(format!(
        "it has compute capability {major}.{minor}, but this build has code only for {}",
        made.architectures.join(", ")
    ))
}

/// Number of bytes per copy, for measuring a GPU's memory bandwidth. A copy exceeds every cache and takes milliseconds.
const COPIED: usize = 512 << 20;

/// Number of copies, for measuring a GPU's memory bandwidth.
const COPIES: i32 = 20;

/// Measures the memory bandwidth of each NVIDIA GPU, in bytes read and written per second, by copying data within
/// the GPU's memory. GPUs without enough free memory for the copies are skipped.
pub fn copy_bandwidths() -> Vec<(String, f64)> {
    let cards = usable(devices()).into_iter();
    let measured = cards.filter_map(|card| Some((card.ordinal()?, card.name))).map(|(ordinal, name)| {
        // SAFETY: the call takes numbers and owns the memory that it uses on the GPU.
        (name, unsafe { sys::anneal_copy_bandwidth(ordinal, COPIED, COPIES) })
    });
    measured.filter(|(_, bandwidth)| *bandwidth > 0.0).collect()
}

/// Returns the devices of the linked backends and of the added workers.
pub fn devices() -> Vec<Device> {
    start_all();
    // SAFETY: the backends are initialised, every index is below the count, and texts are copied at once.
    unsafe {
        (0..sys::ggml_backend_dev_count())
            .map(|index| {
                let device = sys::ggml_backend_dev_get(index);
                let kind = sys::ggml_backend_dev_type(device);
                let is_gpu =
                    [sys::GGML_BACKEND_DEVICE_TYPE_GPU, sys::GGML_BACKEND_DEVICE_TYPE_IGPU].contains(&kind);
                Device {
                    index,
                    name: owned(sys::ggml_backend_dev_name(device)),
                    description: owned(sys::ggml_backend_dev_description(device)),
                    backend: owned(sys::ggml_backend_reg_name(sys::ggml_backend_dev_backend_reg(device))),
                    kind: if is_gpu { DeviceKind::Gpu } else { DeviceKind::Cpu },
                    shares_memory: kind == sys::GGML_BACKEND_DEVICE_TYPE_IGPU,
                }
            })
            .collect()
    }
}

/// Returns the `devices` on which this process can compute.
pub fn usable(mut devices: Vec<Device>) -> Vec<Device> {
    devices.retain(|device| device.fault().is_none());
    devices
}

/// Returns the reasons why devices of this machine cannot be used, each with the device's name.
pub fn faults() -> Vec<String> {
    let told = |device: Device| Some(format!("{}: {}", device.name, device.fault()?));
    devices().into_iter().filter_map(told).collect()
}

/// Returns the reason why cuBLAS cannot be loaded; `None` if it can. A build for NVIDIA GPUs loads cuBLAS at the
/// first multiplication of matrices that are not quantised.
pub fn missing_cublas() -> Option<String> {
    let mut message = Message::new();
    let (err, err_size) = message.parts();
    // SAFETY: writes a message of at most the given size, which outlives the call.
    match unsafe { sys::anneal_cublas(err, err_size) } {
        true => None,
        false => Some(message.text()),
    }
}

/// Returns the version (major, minor) of the protocol for workers; `None` in a build without RPC.
pub fn rpc_version() -> Option<(u8, u8)> {
    start_all();
    let (mut major, mut minor) = (0, 0);
    // SAFETY: writes two numbers.
    unsafe { sys::anneal_rpc_version(&mut major, &mut minor) }.then_some((major, minor))
}

/// Adds the devices of the worker at `endpoint` to [`devices`]. Messages use the name `spoken` for the worker. The
/// worker must be running; otherwise, ggml ends the process.
///
/// # Errors
/// If the devices could not be added. The error contains the reason.
pub fn add_worker(endpoint: &str, spoken: &str) -> std::result::Result<(), String> {
    let text = |text: &str| CString::new(text).map_err(|_| "its name contains a NUL byte".to_string());
    let (endpoint, spoken) = (text(endpoint)?, text(spoken)?);
    let mut message = Message::new();
    let (err, err_size) = message.parts();
    // SAFETY: the texts and the message buffer outlive the call.
    match unsafe { sys::anneal_rpc_add(endpoint.as_ptr(), spoken.as_ptr(), err, err_size) } {
        true => Ok(()),
        false => Err(message.text()),
    }
}

/// Watches the connections to workers, so that a broken connection is detected soon and the error names the
/// worker.
pub(super) fn watch_workers() {
    // SAFETY: inspects this process's files.
    unsafe { sys::anneal_rpc_watch() }
}

/// Watches the client connections to `port`, so that a client whose machine has disappeared does not block the
/// next client.
pub fn watch_clients(port: u16) {
    // SAFETY: inspects this process's files.
    unsafe { sys::anneal_rpc_watch_clients(port) }
}

/// Refuses clients at `port` whose process belongs to another user, except root. Returns false if the system does not
/// report the owner of a connection.
pub fn refuse_other_users(port: u16) -> bool {
    // SAFETY: the call replaces C's stdout, which no other thread uses yet.
    unsafe { sys::anneal_rpc_guard(port) }
}

/// Serves `devices` to clients at `endpoint`, an IPv4 address and a port. A CPU device uses `threads` threads.
/// Returns only if the program cannot listen on `endpoint`. ggml logs to standard output.
///
/// # Errors
/// [`Error::Listen`] if the program cannot listen on `endpoint`.
pub fn serve_devices(endpoint: &str, threads: u32, devices: &[Device]) -> Result<()> {
    let failed = |why: String| Error::Listen { at: endpoint.to_string(), why };
    let text = CString::new(endpoint).map_err(|_| failed("it contains a NUL byte".to_string()))?;
    let mut raw: Vec<sys::ggml_backend_dev_t> = devices.iter().map(Device::raw).collect();
    let mut message = Message::new();
    let (err, err_size) = message.parts();
    // SAFETY: the text, the list and the message buffer outlive the call.
    unsafe {
        sys::anneal_rpc_serve(text.as_ptr(), threads as usize, raw.as_mut_ptr(), raw.len(), err, err_size);
    }
    Err(failed(message.text()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_that_the_program_has_no_code_for_is_told() {
        let made = Cuda {
            toolkit: "13.5".to_string(),
            architectures: vec!["89-real".to_string()],
            cublas: "lazy".to_string(),
            mul_mat: "auto".to_string(),
        };
        let found = foreign(Some(&made), 61).expect("a reason");
        assert!(found.contains("6.1") && found.contains("89-real"), "{found}");
        assert_eq!(foreign(Some(&made), 89), None);
        // An unknown version or capability is not a fault.
        assert_eq!((foreign(Some(&made), 0), foreign(None, 61)), (None, None));
    }

    #[test]
    fn only_nvidias_cards_are_asked() {
        let device = |name: &str, backend: &str| Device {
            index: 0,
            name: name.to_string(),
            description: String::new(),
            backend: backend.to_string(),
            kind: DeviceKind::Gpu,
            shares_memory: false,
        };
        assert_eq!(device("CUDA11", "CUDA").ordinal(), Some(11));
        assert_eq!((device("RPC0", "RPC").ordinal(), device("CUDA0", "RPC").ordinal()), (None, None));
        assert_eq!(device("RPC0", "RPC").fault(), None);
    }
}
