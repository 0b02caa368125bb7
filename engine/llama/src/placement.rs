//! Owner of the shim's placement recorder, which records the device of every operation in a context.

use std::ptr::NonNull;
use std::sync::Arc;

use llama_sys as sys;

use crate::context::Context;
use crate::error::{Error, Result};
use crate::message::{Message, owned};
use crate::model::Model;
use crate::options::ContextOptions;
use crate::system::start;

/// Recorded graphs of a context.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GraphsSeen {
    /// Kinds of buffers.
    pub buffers: Vec<Buffer>,
    /// Tensors that outlive a graph.
    pub held: Vec<Kept>,
    /// Operations in the order in which they were computed, excluding views of other tensors.
    pub ops: Vec<Operation>,
}

/// Kind of buffer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Buffer {
    /// ggml's name for the device: `CUDA0`.
    pub device: String,
    /// Description of the device: `NVIDIA H200`.
    pub description: String,
    /// ggml's name for the kind of buffer: `CUDA0`, `CUDA_Host`, `CPU_Mapped`.
    pub buffer: String,
    /// True if the buffer is in the host's memory, including the layouts of the CPU's own kernels (`AMX`). Also true
    /// for `CUDA_Host`: the CPU computes with this buffer, although its device is the GPU.
    pub is_host: bool,
}

/// Tensor of the weights or of the cache.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// Name of the tensor: `blk.0.attn_q.weight` as in the file, or `cache_k_l0`.
    pub name: String,
    /// Index of the buffer that contains the tensor.
    pub place: usize,
    /// Size in bytes.
    pub bytes: u64,
    /// True for K, V and recurrent state.
    pub is_cache: bool,
}

/// Operation of a graph.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Operation {
    /// Index of the phase to which the operation belongs.
    pub phase: usize,
    /// Kind of the operation: `MUL_MAT`.
    pub op: String,
    /// Name of the result. In `Qcur-0`, 0 is the index of the layer.
    pub name: String,
    /// Index of the result's buffer. The device of the buffer computed the operation.
    pub place: usize,
    /// Size of the result in bytes.
    pub bytes: u64,
    /// Bytes of weights that the operation reads.
    pub weight_bytes: u64,
    /// Number of tensors that were copied from another device for this operation.
    pub copies: u32,
    /// Size of the copied tensors in bytes.
    pub copied_bytes: u64,
    /// Indices of the tensors that the operation reads or writes and that outlive the graph.
    pub held: Vec<usize>,
}

/// Context that records the devices of its operations. Such a context is slower than others, because llama.cpp splits
/// its graphs into more parts.
pub struct Watch {
    // The context is dropped first, because it writes to the notes.
    context: Context,
    notes: Notes,
}

struct Notes(NonNull<sys::anneal_placement>);

// SAFETY: plain data, which is written only while the context evaluates; the evaluation borrows the owner of both
// mutably.
unsafe impl Send for Notes {}

impl Drop for Notes {
    fn drop(&mut self) {
        // SAFETY: owned; the context that writes to it was dropped before.
        unsafe { sys::anneal_placement_free(self.0.as_ptr()) }
    }
}

impl Watch {
    /// Creates a context of `model` with `options` that records the devices of its operations.
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

    /// Returns the context, so that the caller can attach threads to it.
    pub fn context(&mut self) -> &mut Context {
        &mut self.context
    }

    /// Evaluates `tokens` as phase number `phase`. All tokens must fit into one graph.
    pub fn evaluate(&mut self, phase: usize, tokens: &[crate::token::Token]) -> Result<()> {
        // SAFETY: no evaluation runs at the same time.
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

    /// Returns the recorded graphs.
    pub fn seen(&self) -> GraphsSeen {
        let notes = self.notes.0.as_ptr();
        let places = (0..).map_while(|index| {
            let mut place = sys::anneal_place {
                device: std::ptr::null(),
                description: std::ptr::null(),
                buffer: std::ptr::null(),
                host: true,
            };
            // SAFETY: the call fills `place` if it returns true. The texts live until the next graph and are copied
            // at once.
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
            // SAFETY: as above; `held` has `n_held` numbers, and may be null if `n_held` is 0.
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
