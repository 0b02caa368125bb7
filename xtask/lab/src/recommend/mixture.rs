//! llama.cpp's mixtures: the type that its quantiser gives to each tensor.
//!
//! The rules are taken from `llama_tensor_get_type_impl` in llama-quant.cpp of the pinned llama.cpp, without an
//! importance matrix, for the recommended types. The results were checked against the sizes of files written by
//! llama.cpp's quantiser and against the sizes that llama.cpp publishes.

use gguf::GgmlType;

use super::model_facts::{ModelFacts, Tensor};

const F16: GgmlType = GgmlType::F16;
const BF16: GgmlType = GgmlType::known(30);
const Q4_0: GgmlType = GgmlType::known(2);
const Q5_0: GgmlType = GgmlType::known(6);
const Q5_1: GgmlType = GgmlType::known(7);
const Q8_0: GgmlType = GgmlType::known(8);
const Q2_K: GgmlType = GgmlType::known(10);
const Q3_K: GgmlType = GgmlType::known(11);
const Q4_K: GgmlType = GgmlType::known(12);
const Q5_K: GgmlType = GgmlType::known(13);
const Q6_K: GgmlType = GgmlType::known(14);
const IQ4_NL: GgmlType = GgmlType::known(20);
const IQ4_XS: GgmlType = GgmlType::known(23);

/// File type of llama.cpp.
#[derive(Clone, Copy, Debug)]
pub struct Quant {
    /// Name of the file type for llama-quantize.
    pub name: &'static str,
    kind: GgmlType,
    /// Increase in perplexity that llama.cpp publishes for Llama-3-8B, in tools/quantize/quantize.cpp.
    pub perplexity_rise: Option<f64>,
}

/// File types to consider, starting with the largest.
pub const QUANTS: &[Quant] = &[
    Quant { name: "F16", kind: F16, perplexity_rise: None },
    Quant { name: "Q8_0", kind: Q8_0, perplexity_rise: Some(0.0026) },
    Quant { name: "Q6_K", kind: Q6_K, perplexity_rise: Some(0.0217) },
    Quant { name: "Q5_K_M", kind: Q5_K, perplexity_rise: Some(0.0569) },
    Quant { name: "Q5_K_S", kind: Q5_K, perplexity_rise: Some(0.1049) },
    Quant { name: "Q4_K_M", kind: Q4_K, perplexity_rise: Some(0.1754) },
    Quant { name: "Q4_K_S", kind: Q4_K, perplexity_rise: Some(0.2689) },
    Quant { name: "Q4_0", kind: Q4_0, perplexity_rise: Some(0.4685) },
    Quant { name: "IQ4_XS", kind: IQ4_XS, perplexity_rise: None },
    Quant { name: "Q3_K_M", kind: Q3_K, perplexity_rise: Some(0.6569) },
    Quant { name: "Q2_K", kind: Q2_K, perplexity_rise: Some(3.5199) },
];

/// Returns the file type called `name`.
pub fn find(name: &str) -> Option<&'static Quant> {
    QUANTS.iter().find(|quant| quant.name == name)
}

/// Model converted to another file type.
pub struct Mixed {
    /// Facts about the converted model.
    pub model: ModelFacts,
    /// Number of matrices that get another type, because their rows are not a whole number of blocks of the intended
    /// type.
    pub fallbacks: usize,
}

/// Returns `model` as `quant`, as if quantised from its original weights.
pub fn quantise(model: &ModelFacts, quant: &Quant) -> Mixed {
    let mut fallbacks = 0;
    let mut state = MixtureState { seen_values: 0, values: 0, quant, model };
    state.values = model.tensors.iter().filter(|tensor| is_value(tensor)).count() as u64;
    // The quantiser visits the tensors by layer.
    let mut order: Vec<usize> = (0..model.tensors.len()).collect();
    order.sort_by_key(|index| model.tensors[*index].layer());
    let mut tensors = model.tensors.clone();
    for index in order {
        let tensor = &mut tensors[index];
        if !is_quantised_by_type(tensor) {
            continue;
        }
        let wanted = if quant.kind == F16 { F16 } else { state.wanted(tensor) };
        let given = fallback(wanted, tensor.row());
        fallbacks += usize::from(given != wanted);
        tensor.kind = given;
    }
    Mixed { model: model.with_types(quant.name, tensors), fallbacks }
}

/// True if the file type determines the type of this tensor, as it does for all matrices except routers and small
/// matrices (`tensor_allows_quantization`).
pub fn is_quantised_by_type(tensor: &Tensor) -> bool {
    const KEPT: [&str; 6] = [
        "_norm.weight",
        "ffn_gate_inp.weight",
        "ssm_conv1d",
        "shortconv.conv.weight",
        "time_mix_",
        "position_embd",
    ];
    tensor.dims.len() >= 2
        && tensor.name.ends_with("weight")
        && !KEPT.iter().any(|part| tensor.name.contains(part))
        && (is_known_float(tensor) || tensor.kind.block_elements() > 1)
}

fn is_known_float(tensor: &Tensor) -> bool {
    [GgmlType::F32, F16, BF16].contains(&tensor.kind)
}

fn is_value(tensor: &Tensor) -> bool {
    ["attn_v.weight", "attn_qkv.weight", "attn_kv_b.weight"].iter().any(|part| tensor.name.contains(part))
}

struct MixtureState<'a> {
    quant: &'a Quant,
    model: &'a ModelFacts,
    /// Number of value tensors, and number of visited value tensors.
    values: u64,
    seen_values: u64,
}

impl MixtureState<'_> {
    fn wanted(&mut self, tensor: &Tensor) -> GgmlType {
        let (name, default) = (tensor.name.as_str(), self.quant.kind);
        let eight_experts = self.model.experts.is_some_and(|experts| experts.count == 8);
        if name == "output.weight" || (self.model.tied && is_embedding(name)) {
            let whole = tensor.row().is_multiple_of(default.block_elements());
            return if !whole || default == Q8_0 { Q8_0 } else { Q6_K };
        }
        if is_embedding(name) {
            return default;
        }
        if is_value(tensor) {
            let kind = self.value(default);
            self.seen_values += 1;
            return if eight_experts { Q8_0 } else { kind };
        }
        if name.contains("attn_k.weight") && eight_experts {
            return Q8_0;
        }
        if name.contains("ffn_down") {
            return self.down(tensor.layer().unwrap_or(0), default);
        }
        if name.contains("attn_output.weight") {
            return match (self.quant.name, eight_experts) {
                ("Q2_K" | "Q3_K_M" | "Q4_K_S" | "Q4_K_M" | "IQ4_XS", true) => Q5_K,
                ("Q2_K", false) => Q3_K,
                ("Q3_K_M", false) => Q4_K,
                _ => default,
            };
        }
        default
    }

    fn value(&self, default: GgmlType) -> GgmlType {
        let shared = self.model.heads.checked_div(self.model.kv_heads).unwrap_or(1) >= 4;
        let seen = self.seen_values;
        let kind = match self.quant.name {
            "Q2_K" if shared => Q4_K,
            "Q2_K" => Q3_K,
            "Q3_K_M" if seen < 2 => Q5_K,
            "Q3_K_M" => Q4_K,
            "IQ4_XS" if shared => Q5_K,
            "Q4_K_M" | "Q5_K_M" if has_more_bits(seen, self.values) => Q6_K,
            "Q4_K_S" if seen < 4 => Q5_K,
            _ => default,
        };
        // The condition selects LLM_TYPE_70B.
        let seventy = self.model.layers == 80 && self.model.heads != self.model.kv_heads;
        if seventy && (kind == Q3_K || kind == Q4_K) { Q5_K } else { kind }
    }

    fn down(&self, layer: u64, default: GgmlType) -> GgmlType {
        let layers = self.model.layers;
        match self.quant.name {
            "Q2_K" => Q3_K,
            "Q3_K_M" if layer < layers / 16 => Q5_K,
            "Q3_K_M" => Q4_K,
            "Q4_K_M" | "Q5_K_M" if has_more_bits(layer, layers) => Q6_K,
            "IQ4_XS" | "Q4_K_S" if layer < layers / 8 => Q5_K,
            _ => default,
        }
    }
}

/// True for the first and the last eighth of the layers, and for every third layer in between (`use_more_bits`).
fn has_more_bits(index: u64, count: u64) -> bool {
    index < count / 8 || index >= 7 * count / 8 || (index - count / 8) % 3 == 2
}

fn is_embedding(name: &str) -> bool {
    name == "token_embd.weight" || name == "per_layer_token_embd.weight"
}

/// Returns the type that replaces `wanted` if a row is not a whole number of blocks (`tensor_type_fallback`).
fn fallback(wanted: GgmlType, row: u64) -> GgmlType {
    if row.is_multiple_of(wanted.block_elements()) {
        return wanted;
    }
    let smaller = match wanted.name() {
        "iq4_xs" => IQ4_NL,
        "q2_K" | "q3_K" => Q4_0,
        "q4_K" => Q5_0,
        "q5_K" => Q5_1,
        "q6_K" => Q8_0,
        _ => F16,
    };
    if row.is_multiple_of(smaller.block_elements()) { smaller } else { F16 }
}
