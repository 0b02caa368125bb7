//! Allowed ranges of hyperparameters.

use super::hyperparameters::{CheckedModel, MOST_LAYERS};
use crate::check::architectures::{AT_LEAST, FIRST_LAYER_ATTENDS};
use crate::read::ReadError;

/// Largest number that fits into llama.cpp's `int32_t`.
const INT: i128 = i32::MAX as i128;
/// Upper bounds far above every published model. llama.cpp can multiply two such values without overflow.
const WIDTH: i128 = 1 << 20;
const INNER: i128 = 1 << 24;
const HEADS: i128 = 1 << 16;

/// Hyperparameters, single or one per layer, with their minimum and maximum.
const RANGES: &[(&str, i128, i128)] = &[
    ("block_count", 1, MOST_LAYERS),
    ("context_length", 0, INT),
    ("embedding_length", 1, WIDTH),
    ("embedding_length_out", 0, WIDTH),
    ("feed_forward_length", 0, INNER),
    ("expert_feed_forward_length", 0, INNER),
    ("expert_shared_feed_forward_length", 0, INNER),
    // `LLAMA_MAX_EXPERTS`.
    ("expert_count", 0, 1024),
    ("expert_used_count", 0, 1024),
    ("leading_dense_block_count", 0, MOST_LAYERS),
    ("attention.head_count", 0, HEADS),
    ("attention.head_count_kv", 0, HEADS),
    ("attention.key_length", 1, HEADS),
    ("attention.key_length_swa", 1, HEADS),
    ("attention.value_length", 1, HEADS),
    ("attention.value_length_swa", 1, HEADS),
    ("attention.sliding_window", 0, u32::MAX as i128),
    ("rope.dimension_count", 0, HEADS),
    ("rope.dimension_count_swa", 0, HEADS),
    ("rope.scaling.original_context_length", 0, INT),
    ("full_attention_interval", 1, INT),
    // `enum llama_pooling_type`.
    ("pooling_type", 0, 4),
    ("ssm.conv_kernel", 0, HEADS),
    ("ssm.inner_size", 0, INNER),
    ("ssm.state_size", 0, HEADS),
    ("ssm.time_step_rank", 0, INNER),
    ("ssm.group_count", 0, HEADS),
    ("wkv.head_size", 0, HEADS),
];

pub(super) fn check(model: &CheckedModel<'_>) -> Result<(), ReadError> {
    for &(name, least, most) in RANGES {
        range(model, name, least, most)?;
    }
    for &(architecture, name, least) in AT_LEAST {
        if architecture == model.architecture {
            range(model, name, least, INT)?;
        }
    }
    if model.is_one_of(FIRST_LAYER_ATTENDS)
        && model.per_layer("attention.head_count")?.is_some_and(|heads| heads.at(0) == 0)
    {
        return Err(model.wrong(&model.key("attention.head_count"), 0, "at least 1 in the first layer"));
    }
    // llama.cpp uses the last `nextn_predict_layers` blocks to predict further tokens.
    if let (Some(predicting), Some(layers)) =
        (model.number("nextn_predict_layers"), model.number("block_count"))
        && !(0..=layers).contains(&predicting)
    {
        let allowed = format!("0 to {layers}, the value of {}", model.key("block_count"));
        return Err(model.wrong(&model.key("nextn_predict_layers"), predicting, allowed));
    }
    Ok(())
}

fn range(model: &CheckedModel<'_>, name: &str, least: i128, most: i128) -> Result<(), ReadError> {
    let Some(values) = model.per_layer(name)? else { return Ok(()) };
    match values.values().iter().find(|value| !(least..=most).contains(*value)) {
        Some(found) => Err(model.wrong(&model.key(name), found, format!("{least} to {most}"))),
        None => Ok(()),
    }
}
