//! What a context and its model take of memory.

use llama_sys as sys;

use super::{Context, owned};
use crate::error::{Error, Result};

/// What is taken of one kind of buffer, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Taken {
    /// Whose it is, by ggml's name: `CUDA0`.
    pub device: String,
    /// ggml's name of the kind: `CUDA0`, `CUDA_Host`, `CPU_Mapped`.
    pub buffer: String,
    /// Whether it lies in the host's memory.
    pub is_host: bool,
    /// Of weights. A mapped file counts with all that lies between its first and last tensor of the kind.
    pub weights: u64,
    /// Of K, V and recurrent state.
    pub cache: u64,
    /// Of graphs.
    pub compute: u64,
}

/// More kinds of buffers than any model has: one or two for each device.
const KINDS: usize = 64;

impl Context {
    /// What this context and its model take, or would take if the model was loaded without memory.
    ///
    /// # Errors
    /// [`Error::Memory`] where llama.cpp does not tell.
    pub(crate) fn taken(&mut self) -> Result<Vec<Taken>> {
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
        // SAFETY: writes at most as many as there is room for; the context is live.
        let count =
            unsafe { sys::anneal_taken_of(self.raw.as_ptr(), all.as_mut_ptr(), all.len(), err, err_size) };
        if count == 0 {
            return Err(Error::Memory(self.message.text()));
        }
        let taken = all.iter().take(count).map(|one| Taken {
            // SAFETY: names of devices and kinds of buffers live as long as the program.
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
