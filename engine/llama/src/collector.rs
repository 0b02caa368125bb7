//! Owner of the shim's collector for importance matrices.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

use llama_sys as sys;

use crate::error::{Error, Result};
use crate::message::{Message, owned};
use crate::system::start;

/// Sums of the squared inputs of one matrix.
#[derive(Clone, Debug, PartialEq)]
pub struct MatrixSums {
    /// Sum for each column. In a matrix with experts, the columns of each expert follow the previous expert's columns.
    pub sums: Vec<f32>,
    /// Number of inputs in each sum: a single number, or one number per expert.
    pub counts: Vec<f32>,
}

impl MatrixSums {
    /// Returns the mean squares, which a quantiser uses to weight errors. For an expert that received no token, all
    /// columns have the same weight.
    pub fn means(&self) -> Vec<f32> {
        let row = self.sums.len() / self.counts.len().max(1);
        let mean = |(index, sum): (usize, &f32)| match self.counts.get(index / row.max(1)) {
            Some(count) if *count > 0.0 => sum / count,
            _ => 1.0,
        };
        self.sums.iter().enumerate().map(mean).collect()
    }
}

/// Collector that sums the squared inputs of every matrix, in all contexts that use it.
pub struct Collector(NonNull<sys::anneal_collector>);

// SAFETY: plain data. A collector is only written during an evaluation, by the evaluating thread, which has borrowed
// the context mutably. `Imatrix::collect` reads the collector between two evaluations on the same thread.
unsafe impl Send for Collector {}
// SAFETY: as for `Send`.
unsafe impl Sync for Collector {}

impl Drop for Collector {
    fn drop(&mut self) {
        // SAFETY: owned; every context that writes to the collector holds an `Arc` of it.
        unsafe { sys::anneal_collector_free(self.0.as_ptr()) }
    }
}

impl Collector {
    /// Creates a collector for the matrices of the layers and, if `with_output` is true, for the output matrix.
    ///
    /// # Errors
    /// [`Error::Collect`] if memory runs out.
    pub fn new(with_output: bool) -> Result<Arc<Self>> {
        start(false);
        let mut message = Message::new();
        let (err, err_size) = message.parts();
        // SAFETY: the message buffer outlives the call.
        let raw = unsafe { sys::anneal_collector_new(with_output, err, err_size) };
        NonNull::new(raw).map(|raw| Arc::new(Self(raw))).ok_or_else(|| Error::Collect(message.text()))
    }

    /// Returns the pointer that the callback receives.
    pub(super) fn data(&self) -> *mut c_void {
        self.0.as_ptr().cast()
    }

    /// Checks that the collector recorded all inputs without an error.
    ///
    /// # Errors
    /// [`Error::Collect`] with the reason.
    pub fn check(&self) -> Result<()> {
        let mut message = Message::new();
        let (err, err_size) = message.parts();
        // SAFETY: reads fields; the message buffer outlives the call.
        match unsafe { sys::anneal_collector_failed(self.0.as_ptr(), err, err_size) } {
            true => Err(Error::Collect(message.text())),
            false => Ok(()),
        }
    }

    /// Returns the collected sums, with the name of each matrix.
    pub fn entries(&self) -> Vec<(String, MatrixSums)> {
        // SAFETY: reads a field.
        let size = unsafe { sys::anneal_collector_size(self.0.as_ptr()) };
        let entry = |index| {
            let (mut name, mut sums, mut counts) = (std::ptr::null(), std::ptr::null(), std::ptr::null());
            let (mut n_sums, mut n_counts) = (0, 0);
            // SAFETY: the call writes the five values. If it returns true, the pointers point to the stated number
            // of values. The values stay valid until the next evaluation and are copied at once. The pointer of an
            // empty vector may be null.
            unsafe {
                let found = sys::anneal_collector_entry(
                    self.0.as_ptr(),
                    index,
                    &mut name,
                    &mut sums,
                    &mut n_sums,
                    &mut counts,
                    &mut n_counts,
                );
                if !found || sums.is_null() || counts.is_null() {
                    return None;
                }
                let sums = std::slice::from_raw_parts(sums, n_sums);
                let counts = std::slice::from_raw_parts(counts, n_counts);
                let entry = MatrixSums {
                    sums: sums.iter().map(|sum| *sum as f32).collect(),
                    counts: counts.iter().map(|count| *count as f32).collect(),
                };
                Some((owned(name), entry))
            }
        };
        (0..size).filter_map(entry).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_of_each_expert() {
        let entry =
            |sums: &[f32], counts: &[f32]| MatrixSums { sums: sums.into(), counts: counts.into() }.means();
        assert_eq!(entry(&[2.0, 4.0], &[2.0]), [1.0, 2.0]);
        assert_eq!(entry(&[2.0, 4.0, 9.0, 9.0, 6.0, 3.0], &[2.0, 0.0, 3.0]), [1.0, 2.0, 1.0, 1.0, 2.0, 1.0]);
        assert_eq!(entry(&[], &[]), [0.0f32; 0]);
    }
}
