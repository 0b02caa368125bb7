//! LoRA adapters with random weights, for tests.

use std::io::BufWriter;
use std::path::Path;

use build_info::Bytes;
use random_weights::{Xoshiro, draw_normals};

use super::outcome::{Error, Summary};
use crate::ggml_type::GgmlType;
use crate::partial::{PartialFile, PlaceError, refuse_foreign};
use crate::read::GgufFile;
use crate::value::{Scalar, Value};
use crate::write::{Header, Meta, TensorSpec, WriteError, Writer};

/// Rank of the change to each matrix.
const RANK: u64 = 8;

/// Matrices of a layer that the adapter changes, as most adapters do.
const CHANGED: [&str; 2] = ["attn_q.weight", "attn_v.weight"];

/// Size of the change relative to the matrix: enough to change the output, but not to destroy it.
const STRENGTH: f64 = 0.5;

/// Writes a LoRA adapter for the query and value matrices of the model in `model` to `path`. The same seed gives the
/// same bytes.
///
/// # Errors
/// If the model has no such matrices, or the file cannot be written.
pub fn write_adapter(path: &Path, model: &GgufFile, seed: u64) -> Result<Summary, Error> {
    let architecture = match model.get("general.architecture") {
        Some(Value::Scalar(Scalar::String(name))) => name.clone(),
        _ => String::new(),
    };
    let changed = model.tensors().iter().filter(|tensor| {
        CHANGED.iter().any(|name| tensor.name.ends_with(name)) && tensor.dims.len() == 2 && tensor.dims[0] > 0
    });
    let mut tensors = Vec::new();
    for tensor in changed {
        let (inputs, outputs) = (tensor.dims[0], tensor.dims[1]);
        for (end, dims) in [("lora_a", vec![inputs, RANK]), ("lora_b", vec![RANK, outputs])] {
            tensors.push(TensorSpec { name: format!("{}.{end}", tensor.name), dims, kind: GgmlType::F32 });
        }
    }
    if tensors.is_empty() {
        return Err(Error::NoMatrices { path: model.path().to_path_buf() });
    }
    let metadata = vec![
        ("general.architecture".to_string(), Meta::String(architecture)),
        ("general.type".to_string(), Meta::String("adapter".into())),
        ("general.name".to_string(), Meta::String("an adapter with random weights".into())),
        ("adapter.type".to_string(), Meta::String("lora".into())),
        // Alpha equals the rank, so a scale of 1 applies the change unscaled.
        ("adapter.lora.alpha".to_string(), Meta::F32(RANK as f32)),
    ];
    let header = Header { metadata, tensors };
    let total = Bytes(header.tensors.iter().filter_map(TensorSpec::bytes).sum());
    refuse_foreign(path)?;
    let partial = PartialFile::beside(path, total)?;
    let failed = |error| match error {
        WriteError::Io(source) => PlaceError::from_io(path, source),
        other => PlaceError::from_io(path, std::io::Error::other(other)),
    };
    let mut writer = Writer::new(BufWriter::new(partial.open()?), &header).map_err(failed)?;
    for (index, tensor) in header.tensors.iter().enumerate() {
        // Products with rows of `a` keep the size of activations; each row of `b` adds up RANK products.
        let std = match index % 2 {
            0 => 1.0 / (tensor.dims[0] as f64).sqrt(),
            _ => STRENGTH / (RANK as f64).sqrt(),
        };
        let mut random = Xoshiro::keyed(seed, [index as u64, 0]);
        let mut data = Vec::new();
        for _ in 0..tensor.dims[1] {
            draw_normals(&mut data, tensor.dims[0] as usize, 0.0, std, &mut random);
        }
        writer.write_data(&data).map_err(failed)?;
    }
    writer.finish().map_err(failed)?;
    partial.commit()?;
    let parameters = header.tensors.iter().map(|tensor| tensor.dims.iter().product::<u64>()).sum();
    Ok(Summary { tensors: header.tensors.len(), parameters, tensor_bytes: total })
}
