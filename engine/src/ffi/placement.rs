//! The owner of the shim's placement: what a context computes where.

use std::ptr::NonNull;
use std::sync::Arc;

use llama_sys as sys;

use super::{Context, Message, Model, owned, start};
use crate::error::{Error, Result};
use crate::options::ContextOptions;
use crate::placement::{Held, Op, Place, Seen};

/// A context that notes down where it computes. Its speed is not that of others: llama.cpp cuts its graphs into other
/// pieces.
pub(crate) struct Watch {
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
    pub fn evaluate(&mut self, phase: usize, tokens: &[super::Token]) -> Result<()> {
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
    pub fn seen(&self) -> Seen {
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
                sys::anneal_placement_place(notes, index, &mut place).then(|| Place {
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
                sys::anneal_placement_held(notes, index, &mut held).then(|| Held {
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
                Some(Op {
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
        Seen { places: places.collect(), held: held.collect(), ops: ops.collect() }
    }
}
