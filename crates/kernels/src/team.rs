//! Threads that compute an operation together.

use std::ffi::{c_int, c_void};

/// The threads that compute an operation together. Each calls the same function with its own `ith`.
#[repr(C)]
pub struct Team {
    /// Index of this thread.
    pub ith: c_int,
    /// Number of threads.
    pub nth: c_int,
    /// Memory that the threads share.
    pub work: *mut c_void,
    /// Length of the memory in bytes.
    pub work_size: usize,
    /// First argument of the functions.
    pub pool: *mut c_void,
    /// Waits until all threads have called this function.
    pub barrier: unsafe extern "C" fn(*mut c_void),
    /// Sets the counter that the threads share.
    pub chunk_set: unsafe extern "C" fn(*mut c_void, c_int),
    /// Adds to the counter and returns the previous value.
    pub chunk_add: unsafe extern "C" fn(*mut c_void, c_int) -> c_int,
}
