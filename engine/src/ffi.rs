//! The only unsafe code of the engine: owners for llama.cpp's model, context, sampler and thread pool.
//!
//! Everything that can throw or abort goes through the shim's `anneal_*` wrappers; what is called directly
//! only reads fields. Strings from llama.cpp are copied at once.

use std::ffi::{CStr, CString, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use llama_sys as sys;

use crate::error::{Error, Result, readable};

mod batch;
mod clock;
mod collector;
mod context;
mod device;
mod devices;
mod embedding;
mod graphs;
mod held;
mod kernels;
mod log;
mod model;
mod placement;
mod quantizer;
mod sampler;
mod state;
mod stop;
mod system;
mod taken;
mod text;
mod threadpool;
mod variant;

pub(crate) use batch::ALONE;
pub use batch::{Batch, Decoded, MAX_SEQUENCES, SequenceId};
pub(crate) use clock::{ThreadClock, strftime_now, thread_time};
pub use collector::Collector;
pub use context::Context;
pub(crate) use device::DeviceAsked;
pub use devices::{
    Device, DeviceKind, MAX_DEVICES, copy_bandwidths, devices, faults, missing_cublas, rpc_version, usable,
};
pub(crate) use devices::{add_worker, made_for, refuse_other_users, serve_devices, watch_clients};
pub use embedding::Embedding;
pub(crate) use embedding::Threads;
pub use graphs::{CudaGraphs, Graphs, cuda_graphs};
pub use kernels::{has_cpu, load as load_kernels, score as score_kernels};
pub use log::{LogLevel, log_to};
pub use model::Model;
pub(crate) use placement::Watch;
pub(crate) use quantizer::{quantize, quantize_plan, quantize_progress};
pub use sampler::{Candidate, RawChain};
#[cfg(any(feature = "jemalloc", feature = "mimalloc"))]
pub use system::allocator_serves_cpp;
pub use system::{
    TILED, ask_huge_pages, backends, blas_library, blas_threads_obeyed, cuda_variables, device_log, exit_now,
    huge_pages, interrupt, interrupted, llama_version, set_blas_threads, start, switch_cuda, system_info,
    turn_off_tiled,
};
pub(crate) use system::{close_inherited, fail_assertion};
pub(crate) use taken::Taken;
pub use threadpool::Threadpool;

/// A token's number in the vocabulary.
pub type Token = sys::llama_token;

/// The greatest number of threads a pool can have.
pub const MAX_THREADS: u32 = sys::GGML_MAX_N_THREADS;

/// # Safety
/// `text` is null or NUL-terminated and alive during the call.
unsafe fn owned(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// Where the shim puts a failure's message.
struct Message(Box<[u8; 4096]>);

impl Message {
    fn new() -> Self {
        Self(Box::new([0; 4096]))
    }

    fn parts(&mut self) -> (*mut c_char, usize) {
        (self.0.as_mut_ptr().cast(), self.0.len())
    }

    /// Why it failed, where that is a failure.
    fn text(&self) -> String {
        readable(&self.raw())
    }

    /// The same, where an empty one says that it is none.
    fn said(&self) -> Option<String> {
        Some(self.raw()).filter(|raw| !raw.is_empty()).map(|raw| readable(&raw))
    }

    fn raw(&self) -> String {
        let end = self.0.iter().position(|&byte| byte == 0).unwrap_or(self.0.len());
        String::from_utf8_lossy(&self.0[..end]).into_owned()
    }
}

fn c_path(path: &Path) -> Result<CString> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| Error::Usage(format!("{} holds a NUL byte: no file can be called so", path.display())))
}
