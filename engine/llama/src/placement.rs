//! The owner of the shim's placement: what a context computes where.

use std::ptr::NonNull;
use std::sync::Arc;

use llama_sys as sys;

use crate::context::Context;
use crate::error::{Error, Result};
use crate::message::{Message, owned};
use crate::model::Model;
use crate::options::ContextOptions;
use crate::system::start;

/// What was seen of a context's graphs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GraphsSeen {
    /// Kinds of buffers.
    pub buffers: Vec<Buffer>,
    /// What outlives a graph.
    pub held: Vec<Kept>,
    /// Operations in the order in which they were computed, those that only look at something otherwise left out.
    pub ops: Vec<Operation>,
}

/// A kind of buffer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Buffer {
    /// Whose it is, by ggml's name: `CUDA0`.
    pub device: String,
    /// What that is: `NVIDIA H200`.
    pub description: String,
    /// ggml's name of the kind: `CUDA0`, `CUDA_Host`, `CPU_Mapped`.
    pub buffer: String,
    /// Whether it lies in the host's memory, the layouts of the CPU's own kernels (`AMX`) included. `CUDA_Host` does, though its
    /// device is the GPU: the CPU computes there.
    pub is_host: bool,
}

/// Weights or a part of the cache.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// Its name, as in the file: `blk.0.attn_q.weight`; `cache_k_l0`.
    pub name: String,
    /// Index of where it lies.
    pub place: usize,
    /// Its size.
    pub bytes: u64,
    /// Whether it is K, V or recurrent state.
    pub is_cache: bool,
}

/// An operation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Operation {
    /// Which of the phases it belongs to.
    pub phase: usize,
    /// Its kind: `MUL_MAT`.
    pub op: String,
    /// Name of its result: `Qcur-0`, where the number is the layer's.
    pub name: String,
    /// Index of where its result lies, which is where it was computed.
    pub place: usize,
    /// Size of its result.
    pub bytes: u64,
    /// Bytes of weights that it reads.
    pub weight_bytes: u64,
    /// Tensors that were copied from another device for it.
    pub copies: u32,
    /// Their size.
    pub copied_bytes: u64,
    /// Indices of what it reads or writes of what outlives the graph.
    pub held: Vec<usize>,
}

/// A context that notes down where it computes. Its speed is not that of others: llama.cpp cuts its graphs into other
/// pieces.
pub struct Watch {
    // Dropped first: it writes to the other.
    context: Context,
    notes: Notes,
}

struct Notes(NonNull<sys::anneal_placement>);

// SAFETY: plain data, written only while the context evaluates, which borrows the owner of both mutably.
unsafe impl Send for Notes {}

impl Drop for Notes {
    fn drop(&mut self) {
        // SAFETY: owned, and the context that writes to it is gone.
        unsafe { sys::anneal_placement_free(self.0.as_ptr()) }
    }
}

impl Watch {
    /// One of `model` as `options` say.
    pub fn new(model: &Arc<Model>, options: &ContextOptions) -> Result<Self> {
        start(false);
        let mut message = Message::new();
        let (err, err_size) = message.parts();
        // SAFETY: the message outlives the call.
        let raw = unsafe { sys::anneal_placement_new(err, err_size) };
        let notes = NonNull::new(raw).map(Notes).ok_or_else(|| Error::Placement(message.text()))?;
        let data = notes.0.as_ptr();
        let context = Context::for_sequences(model, options, 1, None, |params| {
            params.cb_eval = Some(sys::anneal_place_op);
            params.cb_eval_user_data = data.cast();
        })?;
        Ok(Self { context, notes })
    }

    /// The context, to give it threads.
    pub fn context(&mut self) -> &mut Context {
        &mut self.context
    }

    /// Evaluates `tokens`, no more than one graph takes, as phase number `phase`.
    pub fn evaluate(&mut self, phase: usize, tokens: &[crate::token::Token]) -> Result<()> {
        // SAFETY: nothing evaluates meanwhile.
        unsafe { sys::anneal_placement_phase(self.notes.0.as_ptr(), phase as i32) };
        self.context.decode(tokens)?;
        self.context.synchronize();
        let mut message = Message::new();
        let (err, err_size) = message.parts();
        // SAFETY: reads a field; the message outlives the call.
        match unsafe { sys::anneal_placement_failed(self.notes.0.as_ptr(), err, err_size) } {
            true => Err(Error::Placement(message.text())),
            false => Ok(()),
        }
    }

    /// What was noted down.
    pub fn seen(&self) -> GraphsSeen {
        let notes = self.notes.0.as_ptr();
        let places = (0..).map_while(|index| {
            let mut place = sys::anneal_place {
                device: std::ptr::null(),
                description: std::ptr::null(),
                buffer: std::ptr::null(),
                host: true,
            };
            // SAFETY: fills `place` where it returns true; its texts live until the next graph and are copied at once.
            unsafe {
                sys::anneal_placement_place(notes, index, &mut place).then(|| Buffer {
                    device: owned(place.device),
                    description: owned(place.description),
                    buffer: owned(place.buffer),
                    is_host: place.host,
                })
            }
        });
        let held = (0..).map_while(|index| {
            let mut held = sys::anneal_held { name: std::ptr::null(), place: 0, bytes: 0, cache: false };
            // SAFETY: as above.
            unsafe {
                sys::anneal_placement_held(notes, index, &mut held).then(|| Kept {
                    name: owned(held.name),
                    place: held.place.max(0) as usize,
                    bytes: held.bytes,
                    is_cache: held.cache,
                })
            }
        });
        let ops = (0..).map_while(|index| {
            let mut op = sys::anneal_op {
                phase: 0,
                op: std::ptr::null(),
                name: std::ptr::null(),
                place: 0,
                bytes: 0,
                weight_bytes: 0,
                copies: 0,
                copied_bytes: 0,
                held: std::ptr::null(),
                n_held: 0,
            };
            // SAFETY: as above; `held` is of `n_held` numbers, and may be null where there are none.
            unsafe {
                if !sys::anneal_placement_op(notes, index, &mut op) {
                    return None;
                }
                let held = match op.held.is_null() {
                    true => &[][..],
                    false => std::slice::from_raw_parts(op.held, op.n_held),
                };
                Some(Operation {
                    phase: op.phase.max(0) as usize,
                    op: owned(op.op),
                    name: owned(op.name),
                    place: op.place.max(0) as usize,
                    bytes: op.bytes,
                    weight_bytes: op.weight_bytes,
                    copies: op.copies,
                    copied_bytes: op.copied_bytes,
                    held: held.iter().map(|index| (*index).max(0) as usize).collect(),
                })
            }
        });
        GraphsSeen { buffers: places.collect(), held: held.collect(), ops: ops.collect() }
    }
}
