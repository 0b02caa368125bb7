//! Audit of the instruction sets that a program contains. A compiler flag proves nothing, so the finished file is
//! disassembled, function by function, and checked against rules from a data file.
//!
//! [`Program::open`] reads an ELF file for x86-64, which may be damaged or hostile. [`portable::check`] finds
//! instructions that not every x86-64-v3 CPU has, and [`native::check`] finds kernels that were not vectorised.
//! [`inspect`] disassembles only the CPU kernels of a file, for a diagnosis that must be fast.

mod ceiling;
mod decode;
mod device;
mod dynamic;
mod elf;
mod error;
mod feature;
mod inspect;
pub mod native;
mod open;
mod packed;
mod partial;
pub mod portable;
mod program;
pub mod rules;
mod spill;

pub use ceiling::Ceiling;
pub use device::{DeviceCode, DeviceCodeKind, DeviceTarget};
pub use dynamic::Dynamic;
pub use error::Error;
pub use feature::{Feature, Level};
pub use inspect::{KernelCode, inspect};
pub use packed::Width;
pub use program::{Function, Program, Symbols, Unknown, Use};
pub use rules::Rules;
pub use spill::Spills;
