//! Times of the operations that the CPU backend computes.

use std::sync::{Mutex, MutexGuard, PoisonError};

use llama_sys as sys;

use crate::error::{Error, Result};
use crate::message::owned;
use crate::system::start;

/// Operations of one kind: the same operation on the same type and shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationTime {
    /// ggml's name for the operation: `MUL_MAT`; two names with a plus for operations that are computed together.
    pub op: String,
    /// Type of the weights, of the cache, or of the first operand: `q4_K`.
    pub kind: String,
    /// For products: the row length, the rows and the columns. For attention: the head size, the heads, the tokens and
    /// the cells. For other operations: the shape of the result, without trailing dimensions of size 1.
    pub shape: Vec<u64>,
    /// Number of operations.
    pub calls: u64,
    /// Time of all calls in nanoseconds. Each call is measured until its last thread has finished.
    pub nanoseconds: u64,
    /// For products and attention: bytes that all calls read, from weights and from cells that a token can see.
    /// For other operations: bytes of all operands and of the result, which are usually in the CPU's caches.
    pub bytes: u64,
    /// Multiply-adds of products and attention in all calls. For attention, only cells that a token can see are
    /// counted.
    pub macs: u64,
}

/// Lock that allows only one observer at a time.
static OBSERVER: Mutex<()> = Mutex::new(());

/// Observer of all operations that the CPU backend computes in this process, from its creation until it is dropped.
pub struct OperationTimes(
    #[allow(dead_code, reason = "held until the observer is dropped")] MutexGuard<'static, ()>,
);

impl OperationTimes {
    /// Starts observing graphs that start later. Waits until no other observer exists.
    ///
    /// # Errors
    /// [`Error::Usage`] if llama.cpp was built without the patch for observers.
    pub fn observe() -> Result<Self> {
        start(false);
        let only = OBSERVER.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: sets an atomic pointer to a static function.
        match unsafe { sys::anneal_operations_observe(true) } {
            true => Ok(Self(only)),
            false => Err(Error::Usage(
                "operations cannot be timed: this llama.cpp was built without patch 0015-cpu-observe-operations\n\
                 hint: build the pinned llama.cpp with `cargo xtask build-native`"
                    .to_string(),
            )),
        }
    }

    /// Returns the operations since the last call, and forgets them. Also returns the nanoseconds that the measurement
    /// itself took between operations.
    ///
    /// # Errors
    /// [`Error::Usage`] if memory ran out, so that operations are missing.
    pub fn take(&mut self) -> Result<(Vec<OperationTime>, u64)> {
        let (mut count, mut overhead) = (0, 0);
        // SAFETY: writes both numbers.
        if !unsafe { sys::anneal_operations_take(&mut count, &mut overhead) } {
            return Err(Error::Usage("operations cannot be timed: out of memory".to_string()));
        }
        Ok(((0..count).filter_map(at).collect(), overhead))
    }
}

impl Drop for OperationTimes {
    fn drop(&mut self) {
        // SAFETY: sets an atomic pointer.
        unsafe { sys::anneal_operations_observe(false) };
    }
}

fn at(index: usize) -> Option<OperationTime> {
    let mut raw = sys::anneal_operation {
        op: std::ptr::null(),
        fused: std::ptr::null(),
        type_: std::ptr::null(),
        shape: [0; 4],
        calls: 0,
        nanoseconds: 0,
        bytes: 0,
        macs: 0,
    };
    // SAFETY: if the call returns true, it has written every field, and the texts are static.
    let (op, fused, kind) = unsafe {
        if !sys::anneal_operation_at(index, &mut raw) {
            return None;
        }
        (owned(raw.op), owned(raw.fused), owned(raw.type_))
    };
    let op = if fused.is_empty() { op } else { format!("{op}+{fused}") };
    let mut shape: Vec<u64> = raw.shape.into_iter().map(|n| u64::try_from(n).unwrap_or_default()).collect();
    let sys::anneal_operation { calls, nanoseconds, bytes, macs, .. } = raw;
    // For products and attention, the position of each number is fixed.
    let least = if macs > 0 { 3 } else { 1 };
    while shape.len() > least && shape.last().is_some_and(|n| *n <= 1) {
        shape.pop();
    }
    Some(OperationTime { op, kind, shape, calls, nanoseconds, bytes, macs })
}
