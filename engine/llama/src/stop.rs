//! A flag of one context that ends its evaluation.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use llama_sys as sys;

use crate::context::Context;
use crate::system::interrupted;

impl Context {
    /// From now on `flag` ends an evaluation between two operations of its graph, in place of the whole process's flag.
    pub fn stop_by(&mut self, flag: &Arc<AtomicBool>) {
        let data = Arc::as_ptr(flag).cast_mut().cast::<c_void>();
        // SAFETY: the context is live. The flag is a field of it from here on, so it outlives every graph; graphs
        // borrow the context mutably, so none runs while the flag before is let go.
        unsafe { sys::llama_set_abort_callback(self.raw.as_ptr(), Some(is_set), data) }
        self.stop = Some(Arc::clone(flag));
    }

    /// Whether it was a flag that ended an evaluation.
    pub(super) fn was_stopped(&self) -> bool {
        match &self.stop {
            Some(flag) => flag.load(Ordering::Relaxed),
            None => interrupted(),
        }
    }
}

unsafe extern "C" fn is_set(flag: *mut c_void) -> bool {
    // SAFETY: the flag of `stop_by`, alive as its context is.
    unsafe { (*flag.cast::<AtomicBool>()).load(Ordering::Relaxed) }
}
