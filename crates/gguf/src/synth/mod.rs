//! Models with random weights in the shape of real ones.
//!
//! For tests and benchmarks where no real model is at hand: speed and memory depend on the shape alone. Weights are
//! written as F16 or F32; llama.cpp's own quantiser makes every other type of them.

mod adapter;
mod model;
mod pour;
mod shape;
mod vocabulary;

use std::fmt;
use std::io::BufWriter;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use build_info::Bytes;
use vocabulary::Vocabulary;

use crate::ggml_type::GgmlType;
use crate::partial::{PartialFile, PlaceError};
use crate::write::{Header, TensorSpec, WriteError, Writer};

pub use adapter::write_adapter;

/// A shape to make a model in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preset {
    /// A few megabytes, for tests: llama, 4 layers, 256 wide, 2,048 tokens, an output matrix of its own.
    Tiny,
    /// Tens of megabytes, for training profiles: llama, 4 layers, 512 wide, 16,384 tokens, an output matrix of its
    /// own.
    SmallLlama,
    /// The same as qwen2: biases, tied embeddings, another tokenizer's rules.
    SmallQwen2,
    /// Qwen2.5-1.5B: qwen2, 28 layers, 1,536 wide, 151,936 tokens, tied embeddings, biases. 3.1 GB as F16.
    Qwen2_5_1_5B,
    /// Llama-3.2-1B: llama, 16 layers, 2,048 wide, 128,256 tokens, tied embeddings. 2.5 GB as F16.
    Llama1B,
    /// Llama-3.2-1B cut to 4 layers, for benchmarks that run often: real widths, on which speed depends. 1.0 GB as
    /// F16.
    Llama1B4L,
    /// Qwen2.5-1.5B cut to 4 layers, likewise. 0.8 GB as F16.
    Qwen2_5_1_5B4L,
    /// Granite 3.0 1B A400M's sizes in qwen3moe's graph: 24 layers, 1,024 wide, 8 of 32 experts, 49,152 tokens, tied
    /// embeddings. 2.7 GB as F16.
    Moe1B,
    /// A mixture of experts of some megabytes: qwen3moe, 3 layers, 256 wide, 2 of 8 experts, an output matrix of
    /// its own.
    MoeTiny,
    /// Some megabytes with a sliding window: gemma3, 6 layers, 256 wide, 128 positions in five of them.
    SwaTiny,
    /// Some megabytes for embeddings alone: bert, 3 layers, 256 wide, 512 positions.
    BertTiny,
}

impl Preset {
    /// All presets, the smallest first.
    pub fn all() -> [Self; 11] {
        [
            Self::Tiny,
            Self::MoeTiny,
            Self::BertTiny,
            Self::SwaTiny,
            Self::SmallQwen2,
            Self::SmallLlama,
            Self::Qwen2_5_1_5B4L,
            Self::Llama1B4L,
            Self::Llama1B,
            Self::Moe1B,
            Self::Qwen2_5_1_5B,
        ]
    }

    /// The name it is asked for by.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tiny => "tiny",
            Self::SmallLlama => "small-llama",
            Self::SmallQwen2 => "small-qwen2",
            Self::Qwen2_5_1_5B => "qwen2.5-1.5b",
            Self::Llama1B => "llama-1b",
            Self::Llama1B4L => "llama-1b-4l",
            Self::Qwen2_5_1_5B4L => "qwen2.5-1.5b-4l",
            Self::Moe1B => "moe-1b",
            Self::MoeTiny => "moe-tiny",
            Self::SwaTiny => "swa-tiny",
            Self::BertTiny => "bert-tiny",
        }
    }

    /// Size of the file's tensors.
    pub fn tensor_bytes(self, precision: Precision) -> Bytes {
        let tensors = model::tensors(self.shape(), precision);
        Bytes(tensors.iter().filter_map(|tensor| tensor.spec.bytes()).sum())
    }
}

impl fmt::Display for Preset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Preset {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::all().into_iter().find(|preset| preset.name() == text).ok_or_else(|| {
            let names = Self::all().map(Self::name).join(", ");
            format!("unknown preset {text:?}: use one of {names}")
        })
    }
}

/// The type of the matrices that are written. Norms, biases and routers are always F32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// Half precision: what quantisers start from.
    #[default]
    F16,
    /// Single precision.
    F32,
}

impl Precision {
    fn ggml_type(self) -> GgmlType {
        match self {
            Self::F16 => GgmlType::F16,
            Self::F32 => GgmlType::F32,
        }
    }

    /// `general.file_type`, after `enum llama_ftype`.
    fn file_type(self) -> u32 {
        match self {
            Self::F16 => 1,
            Self::F32 => 0,
        }
    }
}

/// Called with the bytes of weights written so far and to be written in all, every half mebibyte or so. To break
/// is to stop, with [`Error::Stopped`].
pub type Progress<'a> = &'a dyn Fn(Bytes, Bytes) -> ControlFlow<()>;

/// What to make.
#[derive(Clone, Copy)]
pub struct Options<'a> {
    /// The shape.
    pub preset: Preset,
    /// The weights: the same seed gives the same bytes, on any number of threads.
    pub seed: u64,
    /// Type of the matrices.
    pub precision: Precision,
    /// Threads that draw weights, beside the one that writes; by default as many as the process may use.
    pub threads: Option<NonZeroUsize>,
    /// Is told of the progress, on the calling thread.
    pub progress: Option<Progress<'a>>,
}

impl Options<'_> {
    /// `preset` as F16 with seed 0.
    pub fn new(preset: Preset) -> Self {
        Self { preset, seed: 0, precision: Precision::F16, threads: None, progress: None }
    }
}

/// What was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Number of tensors.
    pub tensors: usize,
    /// Number of weights.
    pub parameters: u64,
    /// Size of all tensors.
    pub tensor_bytes: Bytes,
}

/// Why a model was not made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file could not be written or put in its place.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// The progress callback said so.
    #[error("stopped before {} was complete: nothing was written there", path.display())]
    Stopped {
        /// The file that was not written.
        path: PathBuf,
    },
    /// There is nothing that an adapter could change.
    #[error("{} has no query and value matrices that an adapter could change", path.display())]
    NoMatrices {
        /// The model.
        path: PathBuf,
    },
}

/// Why the drawing of weights ended early.
enum Ended {
    Write(WriteError),
    Stopped,
}

/// Vocabulary, tensors and header of a model.
fn parts(options: &Options<'_>) -> (Vocabulary, Vec<model::Tensor>, Header) {
    let shape = options.preset.shape();
    let vocabulary = Vocabulary::new(shape.vocabulary as usize, shape.tokenizer.control);
    let tensors = model::tensors(shape, options.precision);
    let metadata = model::metadata(shape, options.preset.name(), &vocabulary, options.precision);
    let header = model::header(metadata, &tensors);
    (vocabulary, tensors, header)
}

/// Writes the header of a model alone, padded to where the data begins: for tests of what reads headers of large models.
///
/// # Errors
/// Those of `out`.
pub fn write_header(out: impl std::io::Write, options: &Options<'_>) -> Result<(), WriteError> {
    let (_, _, header) = parts(options);
    Writer::new(out, &header).map(drop)
}

/// Writes a model to `path`. It appears there only when it is complete: until then, and for ever when writing
/// fails or is stopped, whatever was there stays.
///
/// Memory stays below 100 MB whatever the preset: weights go to the file as they are drawn.
pub fn write(path: &Path, options: &Options<'_>) -> Result<Summary, Error> {
    let (vocabulary, tensors, header) = parts(options);
    let total = options.preset.tensor_bytes(options.precision);

    let partial = PartialFile::beside(path, total)?;
    let failed = |error| match error {
        WriteError::Io(source) => PlaceError::from_io(path, source),
        other => PlaceError::from_io(path, std::io::Error::other(other)),
    };
    let mut writer = Writer::new(BufWriter::new(partial.open()?), &header).map_err(failed)?;
    let threads = options.threads.or_else(|| std::thread::available_parallelism().ok());
    let mut done = Bytes(0);
    pour::pour(&tensors, &vocabulary, options.seed, threads.map_or(1, NonZeroUsize::get), |data| {
        writer.write_data(data).map_err(Ended::Write)?;
        done.0 += data.len() as u64;
        match options.progress.map_or(ControlFlow::Continue(()), |progress| progress(done, total)) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(Ended::Stopped),
        }
    })
    .map_err(|ended| match ended {
        Ended::Write(error) => Error::Place(failed(error)),
        Ended::Stopped => Error::Stopped { path: path.to_path_buf() },
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
