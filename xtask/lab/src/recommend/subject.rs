//! The model of a recommendation: that of a file, whose header is read, or a known one.

use std::path::Path;

use anyhow::Result;
use base::exit;
use gguf::{GgufFile, Scalar, Value};

use super::mixture;
use super::model_facts::{Metadata, ModelFacts, Tensor};
use super::shapes;

/// The facts of the model at `path`, all parts of it.
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
        // A file that can no longer be read was removed a moment ago: as if the key were not there.
        self.0.numbers(key).ok().flatten()
    }
}

/// The facts of a known model as `quant`.
pub fn model_of_shape(name: &str, quant: &str) -> Result<ModelFacts> {
    let quant = quant.to_ascii_uppercase();
    let Some(shape) = shapes::find(name) else {
        let names: Vec<&str> = shapes::SHAPES.iter().map(|shape| shape.name).collect();
        return Err(exit::usage(format!("no shape {name:?}: there are {}", names.join(", "))));
    };
    let Some(quant) = mixture::find(&quant) else {
        let names: Vec<&str> = mixture::QUANTS.iter().map(|quant| quant.name).collect();
        return Err(exit::usage(format!("no quantisation {quant:?} here: there are {}", names.join(", "))));
    };
    let model = ModelFacts::read(shape, shape.tensors(), name)?;
    Ok(mixture::quantise(&model, quant).model)
}
