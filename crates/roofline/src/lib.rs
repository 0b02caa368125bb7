//! Measures the roofline of a machine ([`build_info::roofline`]): bytes read from memory per second, and
//! multiply-adds from registers per second.
//!
//! Every thread is bound to a separate CPU that the process may use ([`build_info::threads::budget`]). The thread
//! writes to its buffer first, so that the buffer is allocated on that CPU's NUMA node. All threads run the same pass
//! at the same time. The rate of a pass is the total work divided by the time from the first start to the last end. The
//! limit is the fastest pass, because a disturbance can only make a pass slower.
//!
//! The result is checked after every pass. With operands of 1, the sum equals the number of multiply-adds, so the
//! check detects a loop that the compiler optimised away.

#[cfg(target_arch = "x86_64")]
mod amx;
mod buffer;
mod error;
mod kernel;
mod macs;
mod measured;
mod passes;
mod read;
mod team;
#[cfg(target_arch = "x86_64")]
mod x86;
pub use error::Error;
pub use measured::{Kernels, MeasuredRoof, last_level_caches, measure, thread_counts};
