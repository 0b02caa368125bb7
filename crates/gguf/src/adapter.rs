//! Checks that a LoRA adapter fits a model, before llama.cpp loads the adapter.
//!
//! llama.cpp's loader checks the two most important dimensions. All other faults (a third dimension, tensor types,
//! the type of a number) fail assertions in llama.cpp's graph, which end the process.

use build_info::Bytes;

use crate::ggml_type::GgmlType;
use crate::read::{GgufFile, TensorInfo};
use crate::value::{Scalar, Value, ValueType};

/// Suffixes of the names of an adapter's tensors.
const SUFFIXES: [&str; 2] = [".lora_a", ".lora_b"];

/// True for types that llama.cpp can multiply by: floats, and the block types of quantised adapters.
fn is_factor(kind: GgmlType) -> bool {
    let floats = ["f32", "f16", "bf16"];
    // Adapters use only these quantised types, and every backend can multiply by them.
    floats.contains(&kind.name()) || ["q8_0", "q4_0", "q4_1", "q5_0", "q5_1"].contains(&kind.name())
}

fn text<'a>(file: &'a GgufFile, key: &str) -> Option<&'a str> {
    match file.get(key) {
        Some(Value::Scalar(Scalar::String(text))) => Some(text),
        _ => None,
    }
}

/// Checks that `adapter` is a LoRA adapter for the model in `model`, which must contain all parts of the model.
/// Returns the size of the adapter's tensors.
///
/// # Errors
/// If the adapter is invalid or does not match the model; the message is worded to follow the adapter's name.
pub fn check(adapter: &GgufFile, model: &[&GgufFile]) -> Result<Bytes, String> {
    match (text(adapter, "general.type"), text(adapter, "adapter.type")) {
        (Some("adapter"), Some("lora")) => {}
        (Some("adapter"), other) => {
            return Err(format!(
                "it is an adapter of type {:?}, but only lora is supported",
                other.unwrap_or("none")
            ));
        }
        (other, _) => {
            let what = other
                .map_or("it has no general.type".to_string(), |is| format!("its general.type is {is:?}"));
            return Err(format!(
                "it is not an adapter ({what})\nhint: give the path of a LoRA adapter in GGUF format"
            ));
        }
    }
    let architecture = |file: &GgufFile| text(file, "general.architecture").unwrap_or("none").to_string();
    let (own, base) = (architecture(adapter), model.first().map_or(String::new(), |file| architecture(file)));
    if own != base {
        return Err(format!(
            "it was made for the architecture {own}, but the model's architecture is {base}\nhint: use the model that \
             the adapter was made for"
        ));
    }
    match (adapter.value_type("adapter.lora.alpha"), adapter.get("adapter.lora.alpha")) {
        (None, _) => {}
        (Some(ValueType::F32), Some(Value::Scalar(Scalar::Float(alpha)))) if alpha.is_finite() => {}
        _ => {
            return Err(
                "its adapter.lora.alpha is not a finite 32-bit float\nhint: convert the adapter again"
                    .to_string(),
            );
        }
    }
    if adapter.get("adapter.alora.invocation_tokens").is_some() {
        return Err("it is an activated LoRA (aLoRA), which is unsupported".to_string());
    }
    let mut pairs = 0;
    for tensor in adapter.tensors() {
        let Some(base) = SUFFIXES.iter().find_map(|suffix| tensor.name.strip_suffix(suffix)) else {
            // llama.cpp ignores the norms of adapters (src/llama-adapter.cpp; ggml 0.26.0).
            if tensor.name.ends_with("_norm.weight") {
                continue;
            }
            return Err(format!("its tensor {} is not part of a LoRA adapter", tensor.name));
        };
        if !is_factor(tensor.kind) {
            return Err(format!(
                "its tensor {} has the type {}, which is unsupported in adapters",
                tensor.name, tensor.kind
            ));
        }
        if tensor.name.ends_with(SUFFIXES[0]) {
            let other = format!("{base}{}", SUFFIXES[1]);
            let other = adapter.tensors().iter().find(|tensor| tensor.name == other);
            let other = other.ok_or_else(|| lonely(&tensor.name, &format!("{base}{}", SUFFIXES[1])))?;
            let weight = model.iter().flat_map(|file| file.tensors()).find(|tensor| tensor.name == base);
            let weight = weight.ok_or_else(|| {
                format!(
                    "it changes {base}, which the model does not have\nhint: use the model that the adapter was \
                     made for"
                )
            })?;
            check_pair(tensor, other, weight)?;
            check_scaled(base, weight, model)?;
            pairs += 1;
        } else if !adapter.tensors().iter().any(|tensor| tensor.name == format!("{base}{}", SUFFIXES[0])) {
            return Err(lonely(&tensor.name, &format!("{base}{}", SUFFIXES[0])));
        }
    }
    match pairs {
        0 => Err("it contains no LoRA tensors\nhint: convert the adapter again".to_string()),
        _ => Ok(adapter.total_tensor_bytes()),
    }
}

/// Returns the error for a LoRA tensor whose counterpart is missing.
fn lonely(name: &str, missing: &str) -> String {
    format!("it contains the tensor {name}, but no {missing}\nhint: convert the adapter again")
}

/// Rejects an adapter for an NVFP4 matrix that has a scale tensor, because llama.cpp's graph asserts that the matrix
/// has none (`build_ffn` in src/llama-graph.cpp; ggml 0.26.0).
fn check_scaled(base: &str, weight: &TensorInfo, model: &[&GgufFile]) -> Result<(), String> {
    let scale = base.strip_suffix(".weight").map(|name| format!("{name}.scale"));
    let mut tensors = model.iter().flat_map(|file| file.tensors());
    if weight.kind.name() == "nvfp4" && tensors.any(|tensor| Some(&tensor.name) == scale.as_ref()) {
        return Err(format!(
            "it changes {base}, but llama.cpp cannot apply adapters to a matrix of type nvfp4 with a scale\nhint: use \
             the model in another quantisation"
        ));
    }
    Ok(())
}

/// Checks that the product of `b` and `a` has the shape of `weight`.
fn check_pair(a: &TensorInfo, b: &TensorInfo, weight: &TensorInfo) -> Result<(), String> {
    let four = |tensor: &TensorInfo| {
        let mut dims = [1; 4];
        dims.iter_mut().zip(&tensor.dims).for_each(|(to, dim)| *to = *dim);
        dims
    };
    let (a4, b4, w4) = (four(a), four(b), four(weight));
    let rank = b4[0];
    let fits = match weight.name.ends_with("token_embd.weight") {
        // For an embedding, rows of `a` are selected by token, so `a` is transposed.
        true => a4 == [rank, w4[1], 1, 1] && b4 == [rank, w4[0], 1, 1],
        false => a4 == [w4[0], rank, w4[2], w4[3]] && b4 == [rank, w4[1], w4[2], w4[3]],
    };
    match fits && rank > 0 {
        true => Ok(()),
        false => Err(format!(
            "the shapes of its tensors {} {:?} and {} {:?} do not fit the model's {} {:?}\nhint: use the model that \
             the adapter was made for",
            a.name, a.dims, b.name, b.dims, weight.name, weight.dims
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;
    use std::path::Path;

    use build_info::Bytes;

    use super::*;
    use crate::write::{Header, Meta, TensorSpec, Writer};

    fn file(metadata: &[(&str, &str)], tensors: &[(&str, &[u64], &str)]) -> GgufFile {
        let text = |(key, value): &(&str, &str)| (key.to_string(), Meta::String(value.to_string()));
        let header = Header {
            metadata: metadata.iter().map(text).collect(),
            tensors: tensors
                .iter()
                .map(|(name, dims, kind)| TensorSpec {
                    name: name.to_string(),
                    dims: dims.to_vec(),
                    kind: GgmlType::from_name(kind).unwrap(),
                })
                .collect(),
        };
        let mut out = Vec::new();
        let mut writer = Writer::new(&mut out, &header).unwrap();
        for tensor in &header.tensors {
            writer.write_data(&vec![0; tensor.bytes().unwrap() as usize]).unwrap();
        }
        writer.finish().unwrap();
        let size = Bytes(out.len() as u64);
        GgufFile::from_reader(Path::new("m.gguf"), Cursor::new(out), size).unwrap()
    }

    #[test]
    fn a_matrix_with_a_scale_of_its_own_is_not_changed() {
        let adapter = file(
            &[("general.architecture", "llama"), ("general.type", "adapter"), ("adapter.type", "lora")],
            &[
                ("blk.0.ffn_up.weight.lora_a", &[256, 8], "f32"),
                ("blk.0.ffn_up.weight.lora_b", &[8, 512], "f32"),
            ],
        );
        let model = |kind, scaled: bool| {
            let tensors: [(&str, &[u64], &str); 2] =
                [("blk.0.ffn_up.weight", &[256, 512], kind), ("blk.0.ffn_up.scale", &[1], "f32")];
            file(&[("general.architecture", "llama")], &tensors[..if scaled { 2 } else { 1 }])
        };
        for (kind, scaled) in [("q4_K", true), ("nvfp4", false)] {
            check(&adapter, &[&model(kind, scaled)]).unwrap();
        }
        let error = check(&adapter, &[&model("nvfp4", true)]).unwrap_err();
        assert!(error.contains("blk.0.ffn_up.weight") && error.contains("nvfp4"), "{error}");
    }
}
