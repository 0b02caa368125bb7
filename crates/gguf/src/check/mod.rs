//! Checks of a model before llama.cpp loads it.
//!
//! llama.cpp answers many wrong values with an assertion, a division by zero or a read outside of memory. Each of these
//! ends the process, with every other model and every client of it. [`model`] refuses such a file with an error instead.
//! The rules are read off llama.cpp's loader, its graphs and ggml's CPU kernels. A value that llama.cpp itself refuses
//! with an exception needs no rule here, and a value that llama.cpp runs with must pass.

mod architectures;
mod experts;
mod floats;
mod heads;
mod recurrent;
mod sizes;
mod tensors;
mod vocabulary;

use std::fmt::Display;
use std::path::{Path, PathBuf};

use crate::read::{GgufFile, ReadError};
use crate::value::{Scalar, Value, ValueType};

/// Largest number of layers, `LLAMA_MAX_LAYERS`.
const MOST_LAYERS: i128 = 512;

/// A language model that passed the check. Only [`open`] and [`model`] make one.
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

/// Checks the language model whose first file is at `path`, with all its parts.
///
/// # Errors
/// When a part is missing or damaged, or when [`model`] refuses it.
pub fn open(path: &Path) -> Result<Checked, ReadError> {
    let first = GgufFile::open(path)?;
    let others = first.other_parts()?;
    let parts: Vec<&GgufFile> = std::iter::once(&first).chain(&others).collect();
    model(&parts)
}

/// Checks the language model in `parts`, of which the first holds the metadata.
///
/// # Errors
/// Those of [`for_quantising`], and if the file is a multimodal model's projector.
pub fn model(parts: &[&GgufFile]) -> Result<Checked, ReadError> {
    for_quantising(parts)?;
    let path = parts.first().map(|first| first.path().to_path_buf()).unwrap_or_default();
    match parts.first().map(|first| text(first, "general.architecture")) {
        Some(Some(architectures::PROJECTOR)) => Err(ReadError::Unusable {
            path,
            what:
                "general.architecture is \"clip\": the file is the projector of a multimodal model (mmproj)"
                    .into(),
            mend: "name the language model",
        }),
        _ => Ok(Checked { path }),
    }
}

/// Checks the model in `parts` for llama.cpp's quantiser, which takes projectors as well.
///
/// # Errors
/// [`ReadError::Unusable`] with the first value that would end the process, what is allowed and what to do.
pub fn for_quantising(parts: &[&GgufFile]) -> Result<(), ReadError> {
    let Some(model) = Model::new(parts) else { return Ok(()) };
    model.check_parts()?;
    tensors::check(&model)?;
    // A projector has tensors alone, and only `quantize` takes it.
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

/// Returns the text under `key`.
fn text<'a>(file: &'a GgufFile, key: &str) -> Option<&'a str> {
    match file.get(key) {
        Some(Value::Scalar(Scalar::String(text))) => Some(text),
        _ => None,
    }
}

/// A model under check.
struct Model<'a> {
    parts: &'a [&'a GgufFile],
    first: &'a GgufFile,
    architecture: &'a str,
}

impl<'a> Model<'a> {
    fn new(parts: &'a [&'a GgufFile]) -> Option<Self> {
        let first = parts.first()?;
        Some(Self { parts, first, architecture: text(first, "general.architecture").unwrap_or_default() })
    }

    /// True if the architecture is in `list`.
    fn is_one_of(&self, list: &[&str]) -> bool {
        list.contains(&self.architecture)
    }

    /// Returns the key of a hyperparameter: `llama.block_count` for `block_count`.
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    /// Returns a hyperparameter that is one whole number.
    fn number(&self, name: &str) -> Option<i128> {
        match self.first.get(&self.key(name))? {
            Value::Scalar(Scalar::Unsigned(value)) => Some(i128::from(*value)),
            Value::Scalar(Scalar::Signed(value)) => Some(i128::from(*value)),
            _ => None,
        }
    }

    /// Returns a hyperparameter that is a whole number, or a list with one for each layer.
    fn per_layer(&self, name: &str) -> Result<Option<PerLayer>, ReadError> {
        let key = self.key(name);
        if let Some(number) = self.number(name) {
            return Ok(Some(PerLayer(vec![number])));
        }
        // llama.cpp takes no list that is longer than this.
        match self.first.get(&key) {
            Some(Value::Array { len, .. }) if i128::from(*len) <= MOST_LAYERS => {
                Ok(self.first.integers(&key)?.filter(|values| !values.is_empty()).map(PerLayer))
            }
            _ => Ok(None),
        }
    }

    /// Returns the error that names `key`, the value found, and the values allowed.
    fn wrong(&self, key: &str, found: impl Display, allowed: impl Display) -> ReadError {
        self.refuse(format!("{key} is {found}, but must be {allowed}"))
    }

    /// Returns the error for the whole model.
    fn refuse(&self, what: String) -> ReadError {
        ReadError::Unusable {
            path: self.first.path().to_path_buf(),
            what,
            mend: "download or convert the model again",
        }
    }

    /// Checks the value that llama.cpp reads from the metadata of later parts without a check of its type.
    fn check_parts(&self) -> Result<(), ReadError> {
        for part in &self.parts[1..] {
            if part.value_type("split.no") != Some(ValueType::U16) {
                return Err(ReadError::Unusable {
                    path: part.path().to_path_buf(),
                    what: "split.no is missing or not of type u16".to_string(),
                    mend: "download or split the model again",
                });
            }
        }
        Ok(())
    }
}

/// A hyperparameter that has one value for all layers, or one for each.
struct PerLayer(Vec<i128>);

impl PerLayer {
    /// Returns the value for `layer`; the last one for layers beyond the list.
    fn at(&self, layer: usize) -> i128 {
        self.0.get(layer).or(self.0.last()).copied().unwrap_or(0)
    }

    fn values(&self) -> &[i128] {
        &self.0
    }

    fn largest(&self) -> i128 {
        self.0.iter().copied().max().unwrap_or(0)
    }
}
