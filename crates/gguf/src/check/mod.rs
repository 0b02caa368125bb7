//! Validation of a model before llama.cpp loads it.
//!
//! llama.cpp responds to many invalid values with an assertion, a division by zero or an out-of-bounds read. Each of
//! these failures ends the process, with all its other models and clients. [`model`] rejects an invalid file with an
//! error instead. The rules are derived from llama.cpp's loader, its graphs and ggml's CPU kernels. A value that
//! llama.cpp itself rejects with an exception needs no rule here, and a value that llama.cpp can run with must be
//! accepted.

mod architectures;
mod experts;
mod floats;
mod heads;
mod hyperparameters;
mod recurrent;
mod sizes;
mod tensors;
mod vocabulary;

use std::path::{Path, PathBuf};

use hyperparameters::{CheckedModel, text};

use crate::read::{GgufFile, ReadError};

/// Language model that passed validation. Only [`open`] and [`model`] create one.
#[derive(Clone, Debug)]
pub struct Checked {
    path: PathBuf,
}

impl Checked {
    /// Path of the first file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Validates the language model whose first file is at `path`, with all its parts.
///
/// # Errors
/// If a part is missing or damaged, or [`model`] rejects it.
pub fn open(path: &Path) -> Result<Checked, ReadError> {
    let first = GgufFile::open(path)?;
    let others = first.other_parts()?;
    let parts: Vec<&GgufFile> = std::iter::once(&first).chain(&others).collect();
    model(&parts)
}

/// Validates the language model in `parts`, of which the first contains the metadata.
///
/// # Errors
/// If [`for_quantising`] fails, or the file is a multimodal model's projector.
pub fn model(parts: &[&GgufFile]) -> Result<Checked, ReadError> {
    for_quantising(parts)?;
    let path = parts.first().map(|first| first.path().to_path_buf()).unwrap_or_default();
    match parts.first().map(|first| text(first, "general.architecture")) {
        Some(Some(architectures::PROJECTOR)) => Err(ReadError::Unusable {
            path,
            what:
                "general.architecture is \"clip\": the file is the projector of a multimodal model (mmproj)"
                    .into(),
            mend: "give the file of the language model",
        }),
        _ => Ok(Checked { path }),
    }
}

/// Validates the model in `parts` for llama.cpp's quantiser, which also accepts projectors.
///
/// # Errors
/// [`ReadError::Unusable`] for the first value that would end the process, with the allowed values and a hint.
pub fn for_quantising(parts: &[&GgufFile]) -> Result<(), ReadError> {
    let Some(model) = CheckedModel::new(parts) else { return Ok(()) };
    model.check_parts()?;
    tensors::check(&model)?;
    // A projector only has tensors, and only `quantize` accepts it.
    if model.architecture == architectures::PROJECTOR {
        return Ok(());
    }
    floats::check(&model)?;
    sizes::check(&model)?;
    heads::check(&model)?;
    experts::check(&model)?;
    recurrent::check(&model)?;
    vocabulary::check(&model)
}
