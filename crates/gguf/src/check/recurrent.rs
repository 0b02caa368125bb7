//! Layers with a recurrent state: Mamba, gated delta nets, RWKV.

use super::hyperparameters::CheckedModel;
use crate::check::architectures::{DELTA_NET, MAMBA_2, RWKV, TWICE_AS_WIDE};
use crate::read::ReadError;

const INNER: &str = "ssm.inner_size";
const HEADS: &str = "ssm.time_step_rank";
const GROUPS: &str = "ssm.group_count";
const STATE: &str = "ssm.state_size";

pub(super) fn check(model: &CheckedModel<'_>) -> Result<(), ReadError> {
    rwkv(model)?;
    if let (Some(inner), Some(width)) = (model.number(INNER), model.number("embedding_length"))
        && model.is_one_of(TWICE_AS_WIDE)
        && inner != 2 * width
    {
        return Err(model.wrong(
            &model.key(INNER),
            inner,
            format!("twice the embedding length, {}", 2 * width),
        ));
    }
    // A hybrid model may use attention in every layer. It then has no recurrent state.
    let mut names = model.parts.iter().flat_map(|part| part.tensors()).map(|tensor| &tensor.name);
    if !names.any(|name| name.contains(".ssm_")) {
        return Ok(());
    }
    if model.is_one_of(MAMBA_2) {
        positive(model, &["ssm.conv_kernel", INNER, STATE, HEADS, GROUPS])?;
        divisor(model, HEADS, INNER)?;
        divisor(model, GROUPS, INNER)?;
    }
    if model.architecture == "plamo2" {
        positive(model, &["ssm.conv_kernel", INNER, STATE, HEADS])?;
        divisor(model, HEADS, INNER)?;
    }
    if model.is_one_of(DELTA_NET) {
        positive(model, &["ssm.conv_kernel", INNER, STATE, HEADS, GROUPS])?;
        divisor(model, GROUPS, HEADS)?;
        if let (Some(inner), Some(heads), Some(state)) =
            (model.number(INNER), model.number(HEADS), model.number(STATE))
            && inner != heads * state
        {
            let allowed = format!("{heads} heads × {state} state values = {}", heads * state);
            return Err(model.wrong(&model.key(INNER), inner, allowed));
        }
    }
    Ok(())
}

fn rwkv(model: &CheckedModel<'_>) -> Result<(), ReadError> {
    let Some((_, shifted)) = RWKV.iter().find(|(name, _)| *name == model.architecture) else { return Ok(()) };
    positive(model, &["wkv.head_size"])?;
    divisor(model, "wkv.head_size", "embedding_length")?;
    match model.number("token_shift_count") {
        Some(found) if found != *shifted => Err(model.wrong(&model.key("token_shift_count"), found, shifted)),
        _ => Ok(()),
    }
}

/// Rejects 0. llama.cpp itself rejects a missing value or uses a default.
fn positive(model: &CheckedModel<'_>, names: &[&str]) -> Result<(), ReadError> {
    match names.iter().find(|name| model.number(name) == Some(0)) {
        Some(name) => Err(model.wrong(&model.key(name), 0, "at least 1")),
        None => Ok(()),
    }
}

/// Checks that one hyperparameter divides another.
fn divisor(model: &CheckedModel<'_>, divisor: &str, of: &str) -> Result<(), ReadError> {
    match (model.number(divisor), model.number(of)) {
        (Some(found), Some(all)) if found != 0 && all % found != 0 => Err(model.wrong(
            &model.key(divisor),
            found,
            format!("a divisor of {}, which is {all}", model.key(of)),
        )),
        _ => Ok(()),
    }
}
