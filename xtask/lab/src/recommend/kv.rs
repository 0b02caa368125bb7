//! Keys and values that a model stores for each token.
//!
//! The engine uses `gguf::memory::CacheShape`, which must be exact, to reject contexts. This module computes the size
//! layer by layer. For models that it does not know exactly, it returns an upper bound, because an approximate
//! recommendation is better than none.

use build_info::Bytes;
use gguf::GgmlType;
use gguf::memory::head_lengths;
use serde::Serialize;

use super::model_facts::{Metadata, Tensor, sum};

/// Default type of the KV cache.
pub const F16: GgmlType = GgmlType::F16;
/// KV cache type with about half the size of F16 and slightly lower precision.
pub const Q8_0: GgmlType = GgmlType::known(8);

/// KV cache of one token.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Kv {
    /// Number of attention heads with keys and values, in the first layer with such heads.
    #[serde(skip)]
    pub heads: u64,
    /// Number of layers that store keys and values.
    pub layers: u64,
    /// Size of one token as F16.
    pub f16: Bytes,
    /// Size of one token as Q8_0; `None` if a row is not a whole number of blocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub q8_0: Option<Bytes>,
    /// True if the sizes equal llama.cpp's allocations; otherwise they are upper bounds.
    pub exact: bool,
    /// Reasons why the sizes are not exact.
    #[serde(skip)]
    pub notes: Vec<String>,
}

impl Kv {
    /// Reads the header of a model with `layers` layers. As in `llama_kv_cache`, each layer has a row of n_head_kv ×
    /// key_length for the keys and a row of n_head_kv × value_length for the values. Multi-head latent attention has
    /// no rows of values, because its keys contain both.
    pub fn read(
        metadata: &dyn Metadata,
        architecture: &str,
        layers: u64,
        embedding: u64,
        tensors: &[Tensor],
    ) -> Self {
        let key = |name: &str| format!("{architecture}.attention.{name}");
        let number = |name: &str| metadata.number(&key(name)).unwrap_or(0);
        let heads = number("head_count");
        let kv_heads = metadata.numbers(&key("head_count_kv")).unwrap_or_default();
        let told = |name: &str| Some(number(name)).filter(|length| *length > 0);
        let (key_length, value_length) =
            head_lengths(embedding, heads, told("key_length"), told("value_length"));
        let latent = number("key_length_mla") > 0 && number("value_length_mla") > 0;

        let mut kv = Self { exact: true, q8_0: Some(Bytes(0)), ..Self::default() };
        for layer in 0..layers {
            // A single value applies to every layer. Without a value, every head has its own keys.
            let own = kv_heads.get(layer as usize).or_else(|| kv_heads.first()).copied().unwrap_or(heads);
            if own == 0 || is_recurrent(layer, tensors) {
                continue;
            }
            if kv.layers == 0 {
                kv.heads = own;
            }
            kv.layers += 1;
            let k = own.saturating_mul(key_length);
            let v = if latent { 0 } else { own.saturating_mul(value_length) };
            kv.f16.0 =
                sum([kv.f16.0, row(F16, k).unwrap_or(u64::MAX), row(F16, v).unwrap_or(u64::MAX)].into_iter());
            kv.q8_0 = match (kv.q8_0, row(Q8_0, k), row(Q8_0, v)) {
                (Some(all), Some(k), Some(v)) => Some(Bytes(sum([all.0, k, v].into_iter()))),
                _ => None,
            };
        }
        kv.notes(number("sliding_window"), number("shared_kv_layers"), key_length, tensors);
        kv
    }

    fn notes(&mut self, window: u64, shared: u64, key_length: u64, tensors: &[Tensor]) {
        let mut bound = |why: String| {
            self.exact = false;
            self.notes.push(why);
        };
        if window > 0 {
            bound(format!(
                "some layers may attend to only {window} tokens (sliding window): the KV cache figure is an \
                 upper bound, and a long context needs less"
            ));
        }
        if shared > 0 {
            bound(format!(
                "{} keys and values with other layers, so the KV cache needs less memory than shown",
                if shared == 1 { "1 layer shares".to_string() } else { format!("{shared} layers share") }
            ));
        }
        if tensors.iter().any(|tensor| tensor.name.contains(".ssm_") || tensor.name.contains(".time_mix_")) {
            bound("the figures do not include the constant-size state of the recurrent layers".to_string());
        }
        if key_length == 0 {
            bound(
                "the header does not contain the width of keys and values, so the KV cache is not counted"
                    .to_string(),
            );
        }
    }

    /// Returns the size of one token stored as `kind`, which is F16 or Q8_0.
    pub fn per_token(&self, kind: GgmlType) -> Option<u64> {
        if kind == Q8_0 { self.q8_0.map(|bytes| bytes.0) } else { Some(self.f16.0) }
    }
}

fn row(kind: GgmlType, elements: u64) -> Option<u64> {
    kind.bytes_of(elements)
}

/// True if the layer has a recurrent state and no attention. `attn_qkv` does not indicate attention, because the
/// linear attention of Qwen3-Next has such a tensor too.
fn is_recurrent(layer: u64, tensors: &[Tensor]) -> bool {
    let prefix = format!("blk.{layer}.");
    let own = || tensors.iter().filter_map(|tensor| tensor.name.strip_prefix(&prefix));
    let state = ["ssm_", "time_mix_", "shortconv."];
    own().any(|name| state.iter().any(|part| name.starts_with(part)))
        && !own().any(|name| name == "attn_k.weight")
}
