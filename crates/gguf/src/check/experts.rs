//! Checks of mixture-of-experts models.

use super::hyperparameters::{CheckedModel, PerLayer};
use crate::check::architectures::{DEFAULT_GATING, NEEDS_EXPERTS, NEEDS_GATING, ONE_EXPERT_IS_NONE};
use crate::read::ReadError;

pub(super) fn check(model: &CheckedModel<'_>) -> Result<(), ReadError> {
    let count = model.number("expert_count").unwrap_or(0);
    let used = model.per_layer("expert_used_count")?;
    if count <= 1 && model.is_one_of(ONE_EXPERT_IS_NONE) {
        return Ok(());
    }
    let most_used = used.as_ref().map_or(0, PerLayer::largest);
    let used_key = model.key("expert_used_count");
    let count_key = model.key("expert_count");
    if count == 0 && model.is_one_of(NEEDS_EXPERTS) {
        return Err(model.wrong(&count_key, "0 or missing", format!("1 to 1024 for {}", model.architecture)));
    }
    if count == 0 && most_used > 0 {
        return Err(model.wrong(&used_key, most_used, format!("0, because {count_key} is 0 or missing")));
    }
    if count > 0 && !(1..=count).contains(&most_used) {
        let found = if used.is_some() { most_used.to_string() } else { "missing".to_string() };
        return Err(model.wrong(&used_key, found, format!("1 to {count}, the value of {count_key}")));
    }
    groups(model, count)?;
    if count > 0 {
        gating(model)?;
    }
    match used {
        Some(used) if count > 0 => routed_layers(model, &used),
        _ => Ok(()),
    }
}

/// Checks the gating function, which turns a router's outputs into weights.
fn gating(model: &CheckedModel<'_>) -> Result<(), ReadError> {
    const ALLOWED: &str =
        "1 (softmax), 2 (sigmoid), 3 (softmax of the chosen experts) or 4 (square root of softplus)";
    let found = model.number("expert_gating_func").unwrap_or(0);
    let needed = model.is_one_of(NEEDS_GATING);
    match found {
        1..=4 => Ok(()),
        0 if needed => Err(model.wrong(&model.key("expert_gating_func"), "0 or missing", ALLOWED)),
        found if found != 0 && (needed || model.is_one_of(DEFAULT_GATING)) => {
            Err(model.wrong(&model.key("expert_gating_func"), found, ALLOWED))
        }
        _ => Ok(()),
    }
}

/// Checks the groups of experts.
fn groups(model: &CheckedModel<'_>, count: i128) -> Result<(), ReadError> {
    let groups = model.number("expert_group_count").unwrap_or(0);
    let used = model.number("expert_group_used_count").unwrap_or(0);
    let (key, used_key) = (model.key("expert_group_count"), model.key("expert_group_used_count"));
    if count == 0 && groups != 0 {
        return Err(model.wrong(&key, groups, "0, because the model has no experts"));
    }
    if count > 0 && !(0..count).contains(&groups) {
        return Err(model.wrong(&key, groups, format!("less than {count}, the number of experts")));
    }
    if groups > 1 && count % groups != 0 {
        return Err(model.wrong(&key, groups, format!("a divisor of {count}, the number of experts")));
    }
    if groups > 1 && !(1..groups).contains(&used) {
        return Err(model.wrong(&used_key, used, format!("1 to {}, because {key} is {groups}", groups - 1)));
    }
    Ok(())
}

/// Checks that each layer with a router uses at least one expert.
fn routed_layers(model: &CheckedModel<'_>, used: &PerLayer) -> Result<(), ReadError> {
    let names = model.parts.iter().flat_map(|part| part.tensors()).map(|tensor| tensor.name.as_str());
    for name in names {
        let layer = name.strip_prefix("blk.").and_then(|rest| rest.strip_suffix(".ffn_gate_inp.weight"));
        let Some(layer) = layer.and_then(|layer| layer.parse::<usize>().ok()) else { continue };
        if used.at(layer) == 0 {
            let key = model.key("expert_used_count");
            return Err(model.wrong(
                &key,
                format!("0 in layer {layer}"),
                "at least 1 in a layer with a router",
            ));
        }
    }
    Ok(())
}
