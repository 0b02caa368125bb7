//! Flag that stops the evaluation of one context.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use llama_sys as sys;

use crate::context::Context;
use crate::system::interrupted;

impl Context {
    /// Lets `flag`, instead of the process-wide flag, stop an evaluation between two operations of its graph.
    pub fn stop_by(&mut self, flag: &Arc<AtomicBool>) {
        let data = Arc::as_ptr(flag).cast_mut().cast::<c_void>();
        // SAFETY: the context is live. From now on, the flag is a field of the context, so it outlives every graph.
        // Graphs borrow the context mutably, so no graph runs while the previous flag is dropped.
        unsafe { sys::llama_set_abort_callback(self.raw.as_ptr(), Some(is_set), data) }
        self.stop = Some(Arc::clone(flag));
    }

    /// True if a flag stopped the last evaluation.
    pub(super) fn was_stopped(&self) -> bool {
        match &self.stop {
            Some(flag) => flag.load(Ordering::Relaxed),
            None => interrupted(),
        }
    }
}

unsafe extern "C" fn is_set(flag: *mut c_void) -> bool {
    // SAFETY: the flag was set by `stop_by` and lives as long as its context.
    unsafe { (*flag.cast::<AtomicBool>()).load(Ordering::Relaxed) }
}
