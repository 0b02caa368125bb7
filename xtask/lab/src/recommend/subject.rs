//! Model of a recommendation: a file whose header is read, or a known shape.

use std::path::Path;

use anyhow::Result;
use base::exit;
use gguf::{GgufFile, Scalar, Value};

use super::mixture;
use super::model_facts::{Metadata, ModelFacts, Tensor};
use super::shapes;

/// Reads the facts about the model at `path`, including all parts of a split model.
pub fn read_model(path: &Path) -> Result<ModelFacts> {
    let first = GgufFile::open(path)?;
    let others = first.other_parts()?;
    let tensors = std::iter::once(&first)
        .chain(&others)
        .flat_map(|file| file.tensors())
        .map(|tensor| Tensor { name: tensor.name.clone(), dims: tensor.dims.clone(), kind: tensor.kind });
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    ModelFacts::read(&Header(&first), tensors.collect(), &name)
}

struct Header<'a>(&'a GgufFile);

impl Metadata for Header<'_> {
    fn text(&self, key: &str) -> Option<String> {
        match self.0.get(key)? {
            Value::Scalar(Scalar::String(text)) => Some(text.clone()),
            _ => None,
        }
    }

    fn numbers(&self, key: &str) -> Option<Vec<u64>> {
        // The file was readable a moment ago. If it has been removed since, treat the key as absent.
        self.0.numbers(key).ok().flatten()
    }
}

/// Returns the facts about the model with the known shape `name`, quantised as `quant`.
pub fn model_of_shape(name: &str, quant: &str) -> Result<ModelFacts> {
    let quant = quant.to_ascii_uppercase();
    let Some(shape) = shapes::find(name) else {
        let names: Vec<&str> = shapes::SHAPES.iter().map(|shape| shape.name).collect();
        return Err(exit::usage(format!(
            "unknown shape {name:?}\nhint: supported shapes: {}",
            names.join(", ")
        )));
    };
    let Some(quant) = mixture::find(&quant) else {
        let names: Vec<&str> = mixture::QUANTS.iter().map(|quant| quant.name).collect();
        return Err(exit::usage(format!(
            "unknown quantisation {quant:?}\nhint: supported quantisations: {}",
            names.join(", ")
        )));
    };
    let model = ModelFacts::read(shape, shape.tensors(), name)?;
    Ok(mixture::quantise(&model, quant).model)
}
