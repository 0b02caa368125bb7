//! Measures the roof over every figure of a machine ([`build_info::roofline`]): bytes a second read from memory, and
//! multiply-adds a second from registers.
//!
//! Every thread is bound to a CPU of its own, of those that the process may use ([`build_info::threads::budget`]), and
//! touches its own memory first, so that it lies on that CPU's NUMA node. The threads work in step, pass by pass; the
//! rate of a pass is what all did together over the time from the first start to the last end. A roof is the best
//! pass: whatever disturbs a pass makes it slower, nothing makes it faster.
//!
//! The result is checked after every pass: with ones for operands the sum is the number of multiply-adds that
//! were done, so a loop that the compiler took away cannot pass for a fast one.

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
