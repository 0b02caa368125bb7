//! Models with random weights in the shape of real models.
//!
//! Tests and benchmarks use these models instead of real models, because speed and memory depend only on the shape.
//! Weights are written as F16 or F32; llama.cpp's quantiser converts the weights to other types.

mod adapter;
mod model;
mod outcome;
mod pour;
mod preset;
mod shape;
mod vocabulary;

use std::io::BufWriter;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::Path;

use build_info::Bytes;
use vocabulary::Vocabulary;

use crate::partial::{PartialFile, PlaceError, refuse_foreign};
use crate::write::{Header, TensorSpec, WriteError, Writer};

pub use adapter::write_adapter;
pub use outcome::{Error, Summary};
pub use preset::{Precision, Preset};

/// Progress callback. The callback receives the number of weight bytes written so far and the total, about once per
/// half mebibyte. Returning `Break` stops the generation with [`Error::Stopped`].
pub type SynthProgress<'a> = &'a dyn Fn(Bytes, Bytes) -> ControlFlow<()>;

/// Options of model generation.
#[derive(Clone, Copy)]
pub struct SynthOptions<'a> {
    /// Shape of the model.
    pub preset: Preset,
    /// Seed of the weights: the same seed gives the same bytes, with any number of threads.
    pub seed: u64,
    /// Type of the matrices.
    pub precision: Precision,
    /// Number of threads that draw weights, in addition to the writing thread. The default is the number of CPUs that
    /// the process may use.
    pub threads: Option<NonZeroUsize>,
    /// Progress callback, called on the calling thread.
    pub progress: Option<SynthProgress<'a>>,
}

impl SynthOptions<'_> {
    /// Returns the options for `preset` as F16 with seed 0.
    pub fn new(preset: Preset) -> Self {
        Self { preset, seed: 0, precision: Precision::F16, threads: None, progress: None }
    }
}

impl Preset {
    /// Returns the total size of the file's tensors.
    pub fn tensor_bytes(self, precision: Precision) -> Bytes {
        let tensors = model::tensors(self.shape(), precision);
        Bytes(tensors.iter().filter_map(|tensor| tensor.spec.bytes()).sum())
    }
}

/// Reason why the drawing of weights ended early.
enum DrawingEnd {
    Write(WriteError),
    Stopped,
}

/// Returns the vocabulary, tensors and header of a model.
fn parts(options: &SynthOptions<'_>) -> (Vocabulary, Vec<model::Tensor>, Header) {
    let shape = options.preset.shape();
    let vocabulary = Vocabulary::new(shape.vocabulary as usize, shape.tokenizer.control);
    let tensors = model::tensors(shape, options.precision);
    let metadata = model::metadata(shape, options.preset.name(), &vocabulary, options.precision);
    let header = model::header(metadata, &tensors);
    (vocabulary, tensors, header)
}

/// Writes only the header of a model, padded to the start of the data, for tests that read headers of large models.
///
/// # Errors
/// If `out` fails.
pub fn write_header(out: impl std::io::Write, options: &SynthOptions<'_>) -> Result<(), WriteError> {
    let (_, _, header) = parts(options);
    Writer::new(out, &header).map(drop)
}

/// Writes a model to `path`. The file appears at `path` only when it is complete. If the generation fails or is
/// stopped, the previous file is kept.
///
/// Memory use stays below 100 MB for any preset, because weights are written to the file as they are drawn.
///
/// # Errors
/// If the file cannot be written, or the progress callback stops the generation.
pub fn write(path: &Path, options: &SynthOptions<'_>) -> Result<Summary, Error> {
    let (vocabulary, tensors, header) = parts(options);
    let total = options.preset.tensor_bytes(options.precision);

    refuse_foreign(path)?;
    let partial = PartialFile::beside(path, total)?;
    let failed = |error| match error {
        WriteError::Io(source) => PlaceError::from_io(path, source),
        other => PlaceError::from_io(path, std::io::Error::other(other)),
    };
    let mut writer = Writer::new(BufWriter::new(partial.open()?), &header).map_err(failed)?;
    let threads = options.threads.or_else(|| std::thread::available_parallelism().ok());
    let mut done = Bytes(0);
    pour::pour(&tensors, &vocabulary, options.seed, threads.map_or(1, NonZeroUsize::get), |data| {
        writer.write_data(data).map_err(DrawingEnd::Write)?;
        done.0 += data.len() as u64;
        match options.progress.map_or(ControlFlow::Continue(()), |progress| progress(done, total)) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(DrawingEnd::Stopped),
        }
    })
    .map_err(|ended| match ended {
        DrawingEnd::Write(error) => Error::Place(failed(error)),
        DrawingEnd::Stopped => Error::Stopped { path: path.to_path_buf() },
    })?;
    writer.finish().map_err(failed)?;
    partial.commit()?;

    let parameters = |spec: &TensorSpec| spec.dims.iter().product::<u64>();
    Ok(Summary {
        tensors: tensors.len(),
        parameters: tensors.iter().map(|tensor| parameters(&tensor.spec)).sum(),
        tensor_bytes: total,
    })
}
