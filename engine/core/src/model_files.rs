//! Reading of a model's files before the model is loaded.

use std::path::Path;

use build_info::Bytes;
use gguf::GgufFile;
use llama::error::Result;
use llama::variant::Variant;

use crate::settings::Settings;

/// Reads the header of the model at `path`, and the headers of its other parts.
///
/// # Errors
/// If a file cannot be read or is invalid.
pub fn read_files(path: &Path) -> Result<(GgufFile, Vec<GgufFile>)> {
    let file = GgufFile::open(path)?;
    let others = file.other_parts()?;
    Ok((file, others))
}

/// Returns the size of the weights of the adapters that `settings` request. `file` is the first file of the model.
///
/// # Errors
/// If an adapter cannot be read or does not match the model.
pub fn adapters_size(file: &GgufFile, settings: &Settings) -> Result<Bytes> {
    if settings.variant == Variant::default() {
        return Ok(Bytes(0));
    }
    let others = file.other_parts()?;
    let parts: Vec<&GgufFile> = std::iter::once(file).chain(&others).collect();
    settings.variant.check_model(&parts)
}
