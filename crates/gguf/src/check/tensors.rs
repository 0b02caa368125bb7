//! Allowed types of tensors, by the operation that llama.cpp applies to them.
//!
//! The rules come from `LLM_TENSOR_INFOS` of llama-arch.cpp, which assigns an operation to each tensor. ggml's CPU
//! kernels (ggml-cpu.c, ops.cpp, binary-ops.cpp) implement each operation for some types only.

use super::hyperparameters::CheckedModel;
use crate::ggml_type::GgmlType;
use crate::read::{ReadError, TensorInfo};

/// Types that weights never have: integers, double precision, and block types for quantised activations.
const NO_WEIGHTS: [&str; 7] = ["q8_1", "q8_K", "i8", "i16", "i32", "i64", "f64"];

/// Operands of elementwise operations, convolutions and RoPE, in addition to norms and biases. The kernels read these
/// tensors as single precision.
const ELEMENTWISE: &[&str] = &[
    "altup_correct_scale",
    "attn_sinks",
    "channel_mix_lerp_k",
    "channel_mix_lerp_r",
    "exp_probs_b",
    "ffn.act",
    "layer_output_scale",
    "rope_factors_long",
    "rope_factors_short",
    "rope_freqs",
    "shortconv.conv",
    "ssm_a",
    "ssm_conv1d",
    "ssm_conv1d_k",
    "ssm_conv1d_q",
    "ssm_conv1d_v",
    "ssm_d",
    "time_mix_a0",
    "time_mix_decay",
    "time_mix_first",
    "time_mix_k_a",
    "time_mix_k_k",
    "time_mix_lerp_fused",
    "time_mix_lerp_g",
    "time_mix_lerp_k",
    "time_mix_lerp_r",
    "time_mix_lerp_v",
    "time_mix_lerp_w",
    "time_mix_lerp_x",
    "time_mix_ln",
    "time_mix_r_k",
    "time_mix_v0",
    "time_mix_w0",
];

/// Tables of integers, with the type of the integers.
const TABLES: &[(&str, &str)] =
    &[("d2t", "i64"), ("ffn_gate_tid2eid", "i32"), ("masked_embd_ordering", "i32")];

/// Operation that llama.cpp applies to a tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Role {
    /// Matrix of a product, or table whose rows are looked up: any type with a product kernel.
    Matrix,
    /// Operand of an elementwise operation: single precision.
    Elementwise,
    /// Table of integers of this type.
    Table(&'static str),
}

impl Role {
    fn of(name: &str) -> Self {
        let base = without_block(name);
        let (base, suffix) = match base.rsplit_once('.') {
            Some((base, suffix @ ("weight" | "bias" | "scale" | "input_scale"))) => (base, suffix),
            _ => (base, ""),
        };
        if let Some((_, kind)) = TABLES.iter().find(|(table, _)| *table == base) {
            return Self::Table(kind);
        }
        let elementwise = suffix == "bias"
            || suffix.ends_with("scale")
            || base.contains("norm")
            || ELEMENTWISE.contains(&base);
        if elementwise { Self::Elementwise } else { Self::Matrix }
    }

    fn takes(self, kind: GgmlType) -> bool {
        match self {
            Self::Matrix => !NO_WEIGHTS.contains(&kind.name()),
            Self::Elementwise => kind == GgmlType::F32,
            Self::Table(table) => kind.name() == table,
        }
    }

    fn allowed(self) -> String {
        match self {
            Self::Matrix => format!("a type other than {}", NO_WEIGHTS.join(", ")),
            Self::Elementwise => "f32".to_string(),
            Self::Table(kind) => kind.to_string(),
        }
    }
}

/// Strips the block from a name: `attn_q.weight` for `blk.3.attn_q.weight`.
fn without_block(name: &str) -> &str {
    let rest = name.strip_prefix("enc.").or_else(|| name.strip_prefix("dec.")).unwrap_or(name);
    let Some((number, base)) = rest.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) else {
        return rest;
    };
    if number.bytes().all(|byte| byte.is_ascii_digit()) { base } else { rest }
}

pub(super) fn check(model: &CheckedModel<'_>) -> Result<(), ReadError> {
    for part in model.parts {
        for tensor in part.tensors() {
            check_tensor(tensor).map_err(|what| ReadError::Unusable {
                path: part.path().to_path_buf(),
                what,
                mend: "download or convert the model again",
            })?;
        }
    }
    Ok(())
}

fn check_tensor(tensor: &TensorInfo) -> Result<(), String> {
    let TensorInfo { name, dims, kind, .. } = tensor;
    if dims.contains(&0) {
        return Err(format!("tensor '{name}' has the shape {dims:?}, but no dimension may be 0"));
    }
    let role = Role::of(name);
    match role.takes(*kind) {
        true => Ok(()),
        false => Err(format!("tensor '{name}' has the type {kind}, but must have {}", role.allowed())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_what_a_tensor_is_for() {
        let cases = [
            ("token_embd.weight", Role::Matrix),
            ("output.weight", Role::Matrix),
            ("output_norm.weight", Role::Elementwise),
            ("blk.0.attn_q.weight", Role::Matrix),
            ("blk.31.attn_q.bias", Role::Elementwise),
            ("blk.31.attn_q.scale", Role::Elementwise),
            ("blk.31.ffn_down_exps.input_scale", Role::Elementwise),
            ("blk.0.attn_q_norm.weight", Role::Elementwise),
            ("blk.0.ffn_gate_inp.weight", Role::Matrix),
            ("blk.7.ssm_a", Role::Elementwise),
            ("blk.7.ssm_conv1d.weight", Role::Elementwise),
            ("blk.7.ssm_dt.weight", Role::Matrix),
            ("blk.7.shortconv.conv.weight", Role::Elementwise),
            ("blk.7.shortconv.in_proj.weight", Role::Matrix),
            ("blk.7.exp_probs_b.bias", Role::Elementwise),
            ("rope_freqs.weight", Role::Elementwise),
            ("enc.blk.0.attn_q.weight", Role::Matrix),
            ("dec.blk.0.attn_norm.weight", Role::Elementwise),
            ("blk.0.ffn_gate_tid2eid", Role::Table("i32")),
            ("d2t", Role::Table("i64")),
            ("blk.x.attn_norm", Role::Elementwise),
        ];
        for (name, role) in cases {
            assert_eq!(Role::of(name), role, "{name}");
        }
    }
}
