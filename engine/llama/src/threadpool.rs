//! Thread pools that evaluate graphs.

use std::ptr::NonNull;

use llama_sys as sys;

use crate::error::{Error, Result};
use crate::message::Message;
use crate::system::start;

/// Maximum number of threads in a pool.
pub const MAX_THREADS: u32 = sys::GGML_MAX_N_THREADS;

/// Pool of threads that evaluate graphs. The thread that evaluates a graph is one of the pool's threads.
pub struct Threadpool(pub(super) NonNull<sys::ggml_threadpool>);

// SAFETY: ggml locks the pool's state; any thread may free the pool.
unsafe impl Send for Threadpool {}
// SAFETY: a shared reference is only used to pass the pool to a context, see `share_threads`.
unsafe impl Sync for Threadpool {}

impl Drop for Threadpool {
    fn drop(&mut self) {
        // SAFETY: owned; every context that uses the pool is freed first (see `Context::drop`).
        unsafe { sys::anneal_threadpool_free(self.0.as_ptr()) }
    }
}

impl Threadpool {
    /// Starts a pool of `threads` threads. With `cpus`, the threads run only on these CPUs; with `strict`, each
    /// thread is bound to one CPU. `poll`, from 0 (sleep) to 100 (spin), is the polling level of threads that wait
    /// for work.
    pub fn new(threads: u32, cpus: &[u32], strict: bool, poll: u32) -> Result<Self> {
        let failed = |why: String| Error::Threadpool { threads, why };
        if threads == 0 || threads > MAX_THREADS {
            return Err(failed(format!("a pool has 1 to {MAX_THREADS} threads")));
        }
        start(false);
        let mut message = Message::new();
        let (err, err_size) = message.parts();
        // SAFETY: `params` is initialised by the previous call, and only read by this call.
        let raw = unsafe {
            let mut params = sys::ggml_threadpool_params_default(threads.cast_signed());
            for &cpu in cpus {
                if let Some(bit) = params.cpumask.get_mut(cpu as usize) {
                    *bit = true;
                }
            }
            params.strict_cpu = strict;
            params.poll = poll;
            sys::anneal_threadpool_new(&mut params, err, err_size)
        };
        NonNull::new(raw).map(Threadpool).ok_or_else(|| failed(message.text()))
    }
}
