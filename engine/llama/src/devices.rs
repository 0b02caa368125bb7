//! Devices: what there is to compute on, on this machine and at workers.

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

/// Most devices that a model can be on; `llama_max_devices`.
pub const MAX_DEVICES: usize = 16;

/// Kind of a compute device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// The CPU, or a library that works on it.
    Cpu,
    /// A GPU with memory of its own or shared memory, or what a worker computes on.
    Gpu,
}

impl DeviceKind {
    /// As it stands in JSON.
    pub fn name(self) -> &'static str {
        match self {
            DeviceKind::Cpu => "cpu",
            DeviceKind::Gpu => "gpu",
        }
    }
}

/// Something that computes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its place in ggml's list, to which others are only appended.
    pub index: usize,
    /// What it is called by: `CPU`, `CUDA0`, `RPC0`.
    pub name: String,
    /// What it is: the CPU's or the GPU's name; of a worker its address.
    pub description: String,
    /// The part of ggml that works on it: `CPU`, `CUDA`, `RPC`.
    pub backend: String,
    /// What it is to llama.cpp.
    pub kind: DeviceKind,
    /// Whether it is a GPU without memory of its own.
    pub shares_memory: bool,
}

impl Device {
    /// Whether it is another machine's, or another process's.
    pub fn is_remote(&self) -> bool {
        self.backend == "RPC"
    }

    /// Why this process cannot compute on it; nothing where it can. llama.cpp finds a card that it lists to be taken by another
    /// process, full, or of an architecture that the program has no code for only when the model is loaded or computes, and ends
    /// the process then. CUDA is asked once, which makes its context on the card: some hundred MiB, and as many milliseconds.
    pub fn fault(&self) -> Option<String> {
        static FOUND: Mutex<BTreeMap<usize, Option<String>>> = Mutex::new(BTreeMap::new());
        let ordinal = self.ordinal()?;
        let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
        found.entry(self.index).or_insert_with(|| open(ordinal)).clone()
    }

    /// Its place among NVIDIA's cards, as ggml counts them; nothing of another device.
    fn ordinal(&self) -> Option<i32> {
        self.name.strip_prefix("CUDA").filter(|_| self.backend == "CUDA")?.parse().ok()
    }

    /// Its memory, all and free; `None` where it does not tell, or cannot be used. A GPU's driver and a worker are asked.
    pub fn memory(&self) -> Option<(Bytes, Bytes)> {
        if self.fault().is_some() {
            return None;
        }
        let (mut free, mut total) = (0, 0);
        // SAFETY: the index is one of the list, which only grows.
        unsafe { sys::ggml_backend_dev_memory(self.raw(), &mut free, &mut total) };
        (total > 0).then_some((Bytes(total as u64), Bytes(free as u64)))
    }

    pub(super) fn raw(&self) -> sys::ggml_backend_dev_t {
        // SAFETY: the index is one of the list, which only grows.
        unsafe { sys::ggml_backend_dev_get(self.index) }
    }
}

/// What the program was compiled for, by its record: [`Device::fault`] holds a card against it.
static MADE_FOR: OnceLock<Cuda> = OnceLock::new();

/// Says once what the program was compiled for.
pub fn made_for(cuda: &Cuda) {
    MADE_FOR.get_or_init(|| cuda.clone());
}

/// Makes CUDA's context on the card `ordinal`; why it cannot be used.
fn open(ordinal: i32) -> Option<String> {
    let wait = match CudaWait::of_environment() {
        Ok(Some(CudaWait::Spin)) => sys::ANNEAL_CUDA_WAIT_SPIN,
        Ok(Some(CudaWait::Block)) => sys::ANNEAL_CUDA_WAIT_BLOCK,
        // What cannot be meant was told of where settings were resolved.
        Ok(Some(CudaWait::Auto) | None) | Err(_) => sys::ANNEAL_CUDA_WAIT_AUTO,
    };
    let mut capability = 0;
    let mut message = Message::new();
    let (err, err_size) = message.parts();
    // SAFETY: writes a number, and at most the given size; both outlive the call.
    let opened = unsafe { sys::anneal_cuda_open(ordinal, wait, &mut capability, err, err_size) };
    match opened {
        true => foreign(MADE_FOR.get(), capability.unsigned_abs()),
        false => Some(message.text()),
    }
}

/// Why a program that was `made` so does not run on a card of compute capability `capability`, times ten; 0 is not known.
fn foreign(made: Option<&Cuda>, capability: u32) -> Option<String> {
    let (major, minor) = (capability / 10, capability % 10);
    let made = made.filter(|made| capability > 0 && made.runs_on((major, minor)) == Some(false))?;
    Some(format!(
        "it has compute capability {major}.{minor}, and this build holds code for {} alone",
        made.architectures.join(", ")
    ))
}

/// Bytes that are copied at a time to see how fast a card's memory is, and how often: more than any cache holds, and
/// milliseconds of work.
const COPIED: usize = 512 << 20;
const COPIES: i32 = 20;

/// Bytes that each of NVIDIA's cards reads and writes in a second where it copies from its own memory to its own memory; those
/// that have no room for it are left out.
pub fn copy_bandwidths() -> Vec<(String, f64)> {
    let cards = usable(devices()).into_iter();
    let measured = cards.filter_map(|card| Some((card.ordinal()?, card.name))).map(|(ordinal, name)| {
        // SAFETY: takes numbers; memory on the card is its own.
        (name, unsafe { sys::anneal_copy_bandwidth(ordinal, COPIED, COPIES) })
    });
    measured.filter(|(_, bandwidth)| *bandwidth > 0.0).collect()
}

/// The devices of the linked backends, and those of workers that were added.
pub fn devices() -> Vec<Device> {
    start_all();
    // SAFETY: the backends are initialised, every index is below the count, texts are copied at once.
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

/// Those of `devices` that this process can compute on.
pub fn usable(mut devices: Vec<Device>) -> Vec<Device> {
    devices.retain(|device| device.fault().is_none());
    devices
}

/// Why those of this machine that cannot be used cannot, each with its name.
pub fn faults() -> Vec<String> {
    let told = |device: Device| Some(format!("{}: {}", device.name, device.fault()?));
    devices().into_iter().filter_map(told).collect()
}

/// Why there is no cuBLAS, which a build for NVIDIA's GPUs loads when it first multiplies matrices that are not quantised.
pub fn missing_cublas() -> Option<String> {
    let mut message = Message::new();
    let (err, err_size) = message.parts();
    // SAFETY: writes at most the given size, which outlives the call.
    match unsafe { sys::anneal_cublas(err, err_size) } {
        true => None,
        false => Some(message.text()),
    }
}

/// Version (major, minor) of the protocol by which workers are spoken to; `None` in a build without.
pub fn rpc_version() -> Option<(u8, u8)> {
    start_all();
    let (mut major, mut minor) = (0, 0);
    // SAFETY: writes two numbers.
    unsafe { sys::anneal_rpc_version(&mut major, &mut minor) }.then_some((major, minor))
}

/// Adds the devices of the worker at `endpoint`, which is `spoken` of by another name, to [`devices`]. It must be there:
/// ggml ends the process where it is not.
///
/// # Errors
/// In words, why they could not be added.
pub fn add_worker(endpoint: &str, spoken: &str) -> std::result::Result<(), String> {
    let text = |text: &str| CString::new(text).map_err(|_| "its name holds a NUL byte".to_string());
    let (endpoint, spoken) = (text(endpoint)?, text(spoken)?);
    let mut message = Message::new();
    let (err, err_size) = message.parts();
    // SAFETY: the texts and the buffer outlive the call.
    match unsafe { sys::anneal_rpc_add(endpoint.as_ptr(), spoken.as_ptr(), err, err_size) } {
        true => Ok(()),
        false => Err(message.text()),
    }
}

/// Looks at the connections to workers, so that one that breaks is noticed soon, and its worker named.
pub(super) fn watch_workers() {
    // SAFETY: looks at this process's files.
    unsafe { sys::anneal_rpc_watch() }
}

/// Looks at the connections of clients to `port`, so that one whose machine is gone makes room for the next.
pub fn watch_clients(port: u16) {
    // SAFETY: looks at this process's files.
    unsafe { sys::anneal_rpc_watch_clients(port) }
}

/// Has clients at `port` refused that are neither processes of this user nor of root. Returns false if the system does not tell
/// whose a client is.
pub fn refuse_other_users(port: u16) -> bool {
    // SAFETY: puts a stream of its own in the place of C's stdout, which no other thread uses yet.
    unsafe { sys::anneal_rpc_guard(port) }
}

/// Lets clients compute on `devices` at `endpoint`, an IPv4 address and a port, with `threads` threads where that is the
/// CPU. Does not return unless it cannot listen there. ggml writes what it does to standard output.
///
/// # Errors
/// [`Error::Listen`]
pub fn serve_devices(endpoint: &str, threads: u32, devices: &[Device]) -> Result<()> {
    let failed = |why: String| Error::Listen { at: endpoint.to_string(), why };
    let text = CString::new(endpoint).map_err(|_| failed("it holds a NUL byte".to_string()))?;
    let mut raw: Vec<sys::ggml_backend_dev_t> = devices.iter().map(Device::raw).collect();
    let mut message = Message::new();
    let (err, err_size) = message.parts();
    // SAFETY: the text, the list and the buffer outlive the call.
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
        // What is not known is nobody's fault.
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
