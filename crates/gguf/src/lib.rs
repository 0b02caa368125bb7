//! GGUF files: reading and checking them, writing them, and making models with random weights.
//!
//! - [`GgufFile::open`] parses a file without trusting it. llama.cpp's own parser is C++ and ends some damaged
//!   files with an assertion; whatever this one lets through has passed the same rules, with an error that says
//!   where a file is wrong and what to do.
//! - [`check`] refuses a model that would end the process while llama.cpp loads or runs it.
//! - [`write::Writer`] streams a file: header first, then tensor after tensor.
//! - [`synth`] writes a model in the shape of a real one, with random weights and a vocabulary that round-trips.
//! - [`probe`] writes small models of random quantised blocks that touch every matrix kernel of ggml.
//! - [`memory`] says what a model takes when it runs: its weights, and the cache of a context.
//! - [`adapter`] says whether a LoRA adapter is for a model.
//! - [`partial::PartialFile`] makes a new file appear under its name only when it is complete.

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
