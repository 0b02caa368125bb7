//! Memory that a context and its model use.

use llama_sys as sys;

use crate::context::Context;
use crate::error::{Error, Result};
use crate::fit::Taken;
use crate::message::owned;

/// Maximum number of kinds of buffers. No model uses that many, because each device has only one or two kinds.
const KINDS: usize = 64;

impl Context {
    /// Returns the memory that this context and its model use. If the model was loaded without allocating memory,
    /// returns the memory that they would use.
    ///
    /// # Errors
    /// [`Error::Memory`] if llama.cpp does not report the memory.
    pub fn taken(&mut self) -> Result<Vec<Taken>> {
        let none = sys::anneal_taken {
            device: std::ptr::null(),
            buffer: std::ptr::null(),
            host: false,
            weights: 0,
            cache: 0,
            compute: 0,
        };
        let mut all = vec![none; KINDS];
        let (err, err_size) = self.message.parts();
        // SAFETY: the call writes no more elements than fit into the list; the context is live.
        let count =
            unsafe { sys::anneal_taken_of(self.raw.as_ptr(), all.as_mut_ptr(), all.len(), err, err_size) };
        if count == 0 {
            return Err(Error::Memory(self.message.text()));
        }
        let taken = all.iter().take(count).map(|one| Taken {
            // SAFETY: the names of devices and kinds of buffers live as long as the program.
            device: unsafe { owned(one.device) },
            // SAFETY: as above.
            buffer: unsafe { owned(one.buffer) },
            is_host: one.host,
            weights: one.weights,
            cache: one.cache,
            compute: one.compute,
        });
        Ok(taken.collect())
    }
}
