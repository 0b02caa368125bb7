//! Checks of attention heads, and of the elements that RoPE rotates.

use super::hyperparameters::{CheckedModel, MOST_LAYERS, PerLayer};
use crate::check::architectures::{
    EQUAL_HEADS, FIRST_LAYER_ATTENDS, HALF_ROPE, NO_ROPE, ROPE_SECTIONS, WHOLE_ROPE,
};
use crate::read::ReadError;

/// Maximum number of elements in one position's keys or values that llama.cpp counts without overflow.
const MOST: i128 = i32::MAX as i128;

/// Lengths of a head in layers without a sliding window.
#[derive(Clone, Copy)]
struct Lengths {
    key: i128,
    value: i128,
}

pub(super) fn check(model: &CheckedModel<'_>) -> Result<(), ReadError> {
    sections(model)?;
    let Some(heads) = model.per_layer("attention.head_count")? else { return Ok(()) };
    let kv_heads = model.per_layer("attention.head_count_kv")?;
    let layers = model.number("block_count").unwrap_or(1).clamp(1, MOST_LAYERS) as usize;
    for layer in 0..layers {
        let queries = heads.at(layer);
        let keys = kv_heads.as_ref().map_or(queries, |heads| heads.at(layer));
        if keys > 0 && queries % keys != 0 {
            let (key, query) = (model.key("attention.head_count_kv"), model.key("attention.head_count"));
            let allowed = format!("a divisor of {query} ({queries} in layer {layer})");
            return Err(model.wrong(&key, keys, allowed));
        }
    }
    // Layers without attention have no heads. If the first layer has none, the model has no default length.
    if heads.at(0) < 1 {
        return Ok(());
    }
    let default = model.number("embedding_length").unwrap_or(0) / heads.at(0);
    let length = |name: &str| model.number(name).unwrap_or(default);
    let lengths = Lengths { key: length("attention.key_length"), value: length("attention.value_length") };
    let most = heads.largest().max(kv_heads.as_ref().map_or(0, PerLayer::largest));
    for (name, length) in [("attention.key_length", lengths.key), ("attention.value_length", lengths.value)] {
        if most * length > MOST {
            let allowed = format!("at most {} for {most} heads", MOST / most);
            return Err(model.wrong(&model.key(name), length, allowed));
        }
    }
    // If layers with a sliding window have different lengths, each kind of layer must satisfy these relations
    // separately.
    let of_one_kind = ["attention.key_length_swa", "attention.value_length_swa", "rope.dimension_count_swa"]
        .iter()
        .all(|name| model.number(name).is_none());
    if of_one_kind && model.is_one_of(EQUAL_HEADS) && lengths.key != lengths.value {
        let key = model.key("attention.key_length");
        let allowed = format!("equal to {key}, which is {}", lengths.key);
        return Err(model.wrong(&model.key("attention.value_length"), lengths.value, allowed));
    }
    if of_one_kind {
        rows(model, &heads, kv_heads.as_ref().unwrap_or(&heads), lengths.key)?;
    }
    rotated(model, lengths, of_one_kind)
}

/// Checks per-layer numbers of heads against each layer's matrices, because llama.cpp only compares shapes with the
/// first layer's number of heads.
fn rows(
    model: &CheckedModel<'_>,
    heads: &PerLayer,
    kv_heads: &PerLayer,
    length: i128,
) -> Result<(), ReadError> {
    let keys = model.is_one_of(EQUAL_HEADS) || model.is_one_of(FIRST_LAYER_ATTENDS);
    for (found, matrix, name, known) in [
        (heads, "attn_q.weight", "attention.head_count", model.is_one_of(WHOLE_ROPE)),
        (kv_heads, "attn_k.weight", "attention.head_count_kv", keys),
    ] {
        if !known || found.values().len() < 2 {
            continue;
        }
        for tensor in model.parts.iter().flat_map(|part| part.tensors()) {
            let layer = tensor.name.strip_prefix("blk.").and_then(|rest| rest.strip_suffix(matrix));
            let layer = layer.and_then(|layer| layer.strip_suffix('.')?.parse::<usize>().ok());
            let (Some(layer), [_, rows]) = (layer, tensor.dims.as_slice()) else { continue };
            if found.at(layer) * length != i128::from(*rows) {
                let given = format!("{} in layer {layer}", found.at(layer));
                let allowed = format!(
                    "{rows} / {length}, the number of rows of {} divided by the length of a head",
                    tensor.name
                );
                return Err(model.wrong(&model.key(name), given, allowed));
            }
        }
    }
    Ok(())
}

/// Checks the number of elements of a head that RoPE rotates, in normal layers and in layers with a sliding window.
///
/// If the number is 0, a loop in ggml's CPU kernel never advances (`rope` in ggml/src/ggml-cpu/ops.cpp; ggml 0.26.0).
fn rotated(model: &CheckedModel<'_>, lengths: Lengths, of_one_kind: bool) -> Result<(), ReadError> {
    const NAME: &str = "rope.dimension_count";
    const SLIDING: &str = "rope.dimension_count_swa";
    if model.is_one_of(NO_ROPE) {
        return Ok(());
    }
    let given = model.number(NAME);
    if let Some(given) = given
        && of_one_kind
        && model.is_one_of(WHOLE_ROPE)
        && given != lengths.key
    {
        return Err(model.wrong(&model.key(NAME), given, format!("the length of a head, {}", lengths.key)));
    }
    let longest = model.number("attention.key_length_swa").unwrap_or(0).max(lengths.key);
    let share = if model.is_one_of(HALF_ROPE) { 2 } else { 1 };
    for (name, given, share) in [(NAME, given, share), (SLIDING, model.number(SLIDING), 1)] {
        let Some(given) = given else { continue };
        let rotated = given / share;
        if rotated < 2 || rotated % 2 != 0 || rotated > longest {
            let half = if share == 2 { " after halving" } else { "" };
            let allowed = format!("even, at least 2 and at most {longest} (the length of a head){half}");
            return Err(model.wrong(&model.key(name), given, allowed));
        }
    }
    Ok(())
}

/// Checks the sections of a head that RoPE rotates by time, height and width.
fn sections(model: &CheckedModel<'_>) -> Result<(), ReadError> {
    const NAME: &str = "rope.dimension_sections";
    let key = model.key(NAME);
    let found = match model.first.get(&key) {
        // llama.cpp's default.
        None => vec![0],
        // A single number applies to all sections. llama.cpp itself rejects values that are not numbers.
        Some(_) => match model.first.integers(&key)? {
            Some(found) => found,
            None => return Ok(()),
        },
    };
    let most = i128::from(u16::MAX);
    if let Some(section) = found.iter().find(|section| !(0..=most).contains(*section)) {
        return Err(model.wrong(&key, format!("{section} in one section"), format!("0 to {most} in each")));
    }
    if model.is_one_of(ROPE_SECTIONS) && found.iter().take(3).all(|section| *section == 0) {
        return Err(model.wrong(&key, "0 in each of the first three sections", "at least 1 in one of them"));
    }
    Ok(())
}
