//! GGUF files: reading, validating and writing them, and generating models with random weights.
//!
//! - [`GgufFile::open`] parses an untrusted file. llama.cpp's own parser is C++ code that responds to some damaged
//!   files with an assertion. This parser applies the same rules, and its errors name the damaged part and suggest a
//!   remedy.
//! - [`check`] rejects a model that would end the process while llama.cpp loads or runs it.
//! - [`write::Writer`] streams a file: the header first, then one tensor after the other.
//! - [`synth`] writes a model in the shape of a real one, with random weights and a vocabulary that round-trips.
//! - [`probe`] writes small models of random quantised blocks that exercise every matrix kernel of ggml.
//! - [`memory`] computes the memory that a model uses when it runs: its weights, and the cache of a context.
//! - [`adapter`] checks that a LoRA adapter fits a model.
//! - [`partial::PartialFile`] makes a new file appear under its name only when the file is complete.

pub mod adapter;
pub mod check;
mod format;
mod ftype;
mod ggml_type;
pub mod memory;
pub mod partial;
pub mod probe;
mod read;
pub mod synth;
mod value;
pub mod write;

pub use format::{DEFAULT_ALIGNMENT, MAGIC, VERSION};
pub use ftype::file_type_name;
pub use ggml_type::{GgmlType, UnknownType};
pub use read::{GgufFile, ReadError, Split, TensorInfo, Texts};
pub use value::{Scalar, Value, ValueType};
