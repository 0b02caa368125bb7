//! Size and computational cost of a model, computed from its header.

use anyhow::{Result, bail};
use build_info::Bytes;
use gguf::GgmlType;
use serde::Serialize;

use super::kv::Kv;

/// Value of `LLAMA_MAX_LAYERS` in llama-hparams.h.
const MAX_LAYERS: u64 = 512;

/// Access to the keys of a model's header.
pub trait Metadata {
    /// Returns the string under `key`.
    fn text(&self, key: &str) -> Option<String>;
    /// Returns the integers under `key`: one integer for a number, or all elements of an array.
    fn numbers(&self, key: &str) -> Option<Vec<u64>>;
    /// Returns the integer under `key`, or the first element of an array.
    fn number(&self, key: &str) -> Option<u64> {
        self.numbers(key)?.first().copied()
    }
}

/// Tensor without its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Name of the tensor, such as `blk.0.attn_q.weight`.
    pub name: String,
    /// Dimensions; the first is the number of elements in a row.
    pub dims: Vec<u64>,
    /// Type of the tensor's data.
    pub kind: GgmlType,
}

impl Tensor {
    /// Returns the number of weights of the tensor.
    pub fn elements(&self) -> u64 {
        self.dims.iter().fold(1, |product: u64, dim| product.saturating_mul(*dim))
    }

    /// Returns the number of elements in a row.
    pub fn row(&self) -> u64 {
        self.dims.first().copied().unwrap_or(1)
    }

    /// Returns the size, in bytes, that the tensor's data would have if stored as `kind`. If a row is not a whole
    /// number of blocks, returns the size in F16.
    pub fn bytes_as(&self, kind: GgmlType) -> u64 {
        let rows = self.elements() / self.row().max(1);
        kind.bytes_of(self.row()).unwrap_or(self.row().saturating_mul(2)).saturating_mul(rows)
    }

    /// Returns the size of the tensor's data in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes_as(self.kind)
    }

    /// Returns the layer of the tensor, if it belongs to one.
    pub fn layer(&self) -> Option<u64> {
        self.name.strip_prefix("blk.")?.split('.').next()?.parse().ok()
    }

    /// True if the tensor contains the weights of all experts of a layer. A token uses only some of these experts.
    pub fn is_experts(&self) -> bool {
        self.name.contains("_exps.")
    }

    /// True if a token needs only one row of the tensor, and no multiplication with the whole tensor.
    fn is_lookup(&self) -> bool {
        ["token_embd.weight", "per_layer_token_embd.weight", "position_embd.weight"]
            .contains(&self.name.as_str())
    }
}

/// Mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Experts {
    /// Number of experts in a layer.
    pub count: u64,
    /// Number of experts that a token uses.
    pub used: u64,
}

/// Part of the file that tensors of one type occupy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TypeShare {
    /// ggml's name of the type, such as `q4_K`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// Size of the tensors of this type.
    pub bytes: Bytes,
    /// Fraction of the size of all tensors, 0 to 1.
    pub share: f64,
}

/// Number of multiply-adds with the layers' matrices for one prompt token, by the type of the weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Macs {
    /// Number of multiply-adds with quantised weights, computed with 8-bit integers.
    pub quantised: u64,
    /// Number of multiply-adds with F16 and BF16 weights.
    pub half: u64,
    /// Number of multiply-adds with F32 weights.
    pub single: u64,
}

impl Macs {
    /// Returns the sum of all multiply-adds.
    pub fn total(self) -> u64 {
        self.quantised.saturating_add(self.half).saturating_add(self.single)
    }

    fn add(&mut self, kind: GgmlType, macs: u64) {
        let place = match kind.name() {
            "f16" | "bf16" => &mut self.half,
            "f32" => &mut self.single,
            _ => &mut self.quantised,
        };
        *place = place.saturating_add(macs);
    }
}

/// Facts about a model that determine its size and speed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModelFacts {
    /// `general.name`, or the name of the file.
    pub name: String,
    /// Value of `general.architecture`.
    pub architecture: String,
    /// File type, such as `Q4_K_M`; if unknown, the type of the largest part of the file.
    pub quantisation: String,
    /// Number of weights.
    pub parameters: u64,
    /// Number of weights that a token uses. In a mixture of experts, this is only a part of all weights.
    pub active_parameters: u64,
    /// Size of all tensors.
    pub weights: Bytes,
    /// Size of the experts' tensors, which `weights` includes.
    pub expert_weights: Bytes,
    /// Types by size, starting with the largest.
    pub types: Vec<TypeShare>,
    /// Number of layers.
    pub layers: u64,
    /// Width of the residual stream.
    pub embedding: u64,
    /// Width of the feed-forward network, or of one expert.
    pub feed_forward: u64,
    /// Number of attention heads in the first layer.
    pub heads: u64,
    /// Number of heads with keys and values in the first layer.
    pub kv_heads: u64,
    /// Number of tokens in the vocabulary.
    pub vocabulary: u64,
    /// True if the embedding is also the output matrix.
    pub tied: bool,
    /// Context length in tokens that the model was trained with; `None` if the header does not say.
    pub trained_context: Option<u64>,
    /// Experts of the model; `None` if the model is not a mixture of experts.
    pub experts: Option<Experts>,
    /// Bytes of weights that decode reads from memory per token.
    pub bytes_per_token: Bytes,
    /// Work for one prompt token.
    pub prefill_macs: Macs,
    /// Keys and values of one token.
    pub kv: Kv,
    /// Values that could not be determined, each with its effect on the figures.
    pub notes: Vec<String>,
    /// Tensors of the model.
    #[serde(skip)]
    pub tensors: Vec<Tensor>,
}

impl ModelFacts {
    /// Reads the facts from a header. `fallback_name` is used for a model without a name.
    ///
    /// # Errors
    /// If the header does not belong to a language model (no architecture, no layers or no tensors), or the model has
    /// more layers than llama.cpp supports.
    pub fn read(metadata: &dyn Metadata, tensors: Vec<Tensor>, fallback_name: &str) -> Result<Self> {
        let Some(architecture) = metadata.text("general.architecture") else {
            bail!(
                "{fallback_name} is not a language model: its header lacks general.architecture\nhint: use the \
                 GGUF file of a model"
            );
        };
        let key = |name: &str| format!("{architecture}.{name}");
        let Some(layers) = metadata.number(&key("block_count")).filter(|layers| *layers > 0) else {
            bail!(
                "{fallback_name} has no layers ({}), so it is a vocabulary or an adapter, not a model",
                key("block_count")
            );
        };
        if layers > MAX_LAYERS {
            bail!(
                "{fallback_name} is damaged: its header has {layers} layers, but llama.cpp supports at most \
                 {MAX_LAYERS}"
            );
        }
        if tensors.is_empty() {
            bail!(
                "{fallback_name} has no weights\nhint: use the file of the model, or the first part of a split \
                 model"
            );
        }
        let number = |name: &str| metadata.number(&key(name)).unwrap_or(0);
        let (count, used) = (number("expert_count"), number("expert_used_count"));
        let experts = (count > 0 && used > 0 && used <= count).then_some(Experts { count, used });
        let tied = !tensors.iter().any(|tensor| tensor.name == "output.weight");
        let embedding = number("embedding_length");
        let kv = Kv::read(metadata, &architecture, layers, embedding, &tensors);
        let mut notes = kv.notes.clone();
        if count > 0 && experts.is_none() {
            notes.push(format!(
                "the header does not contain the number of experts per token, so all {count} experts count \
                 as used"
            ));
        }
        let vocabulary = tensors
            .iter()
            .find(|tensor| tensor.name == "token_embd.weight")
            .and_then(|tensor| tensor.dims.get(1).copied());
        let work = TokenWork::of(&tensors, experts, tied);
        let types = type_shares(&tensors);
        let named = metadata.number("general.file_type").and_then(|number| u32::try_from(number).ok());
        let quantisation = named
            .and_then(gguf::file_type_name)
            .map(str::to_string)
            .or_else(|| types.first().map(|share| share.kind.to_uppercase()))
            .unwrap_or_default();
        Ok(Self {
            name: metadata
                .text("general.name")
                .filter(|name| !name.is_empty())
                .unwrap_or_else(|| fallback_name.into()),
            quantisation,
            parameters: sum(tensors.iter().map(Tensor::elements)),
            active_parameters: work.active,
            weights: Bytes(sum(tensors.iter().map(Tensor::bytes))),
            expert_weights: Bytes(sum(tensors
                .iter()
                .filter(|tensor| tensor.is_experts())
                .map(Tensor::bytes))),
            types,
            layers,
            embedding,
            feed_forward: match number("expert_feed_forward_length") {
                0 => number("feed_forward_length"),
                width => width,
            },
            heads: number("attention.head_count"),
            kv_heads: kv.heads,
            vocabulary: vocabulary.unwrap_or_else(|| number("vocab_size")),
            tied,
            trained_context: metadata.number(&key("context_length")).filter(|context| *context > 0),
            experts,
            bytes_per_token: Bytes(work.bytes),
            prefill_macs: work.macs,
            kv,
            notes,
            architecture,
            tensors,
        })
    }

    /// Returns the same model with tensors of different types.
    pub fn with_types(&self, quantisation: &str, tensors: Vec<Tensor>) -> Self {
        let work = TokenWork::of(&tensors, self.experts, self.tied);
        let expert = tensors.iter().filter(|tensor| tensor.is_experts()).map(Tensor::bytes);
        Self {
            quantisation: quantisation.to_string(),
            weights: Bytes(sum(tensors.iter().map(Tensor::bytes))),
            expert_weights: Bytes(sum(expert)),
            types: type_shares(&tensors),
            bytes_per_token: Bytes(work.bytes),
            prefill_macs: work.macs,
            tensors,
            ..self.clone()
        }
    }

    /// Returns the average number of bits per weight.
    pub fn bits_per_weight(&self) -> f64 {
        8.0 * self.weights.0 as f64 / self.parameters.max(1) as f64
    }

    /// Returns the size of the tensors of layer `layer`, and the size of its experts' tensors.
    pub fn layer_bytes(&self, layer: u64) -> (u64, u64) {
        let of = |experts: bool| {
            let own = self.tensors.iter().filter(|tensor| tensor.layer() == Some(layer));
            sum(own.filter(|tensor| !experts || tensor.is_experts()).map(Tensor::bytes))
        };
        (of(false), of(true))
    }
}

/// Work and memory traffic of one token.
struct TokenWork {
    bytes: u64,
    active: u64,
    macs: Macs,
}

impl TokenWork {
    fn of(tensors: &[Tensor], experts: Option<Experts>, tied: bool) -> Self {
        let mut work = Self { bytes: 0, active: 0, macs: Macs::default() };
        for tensor in tensors {
            let used = |all: u64| match experts {
                Some(Experts { count, used }) if tensor.is_experts() => scale(all, used, count),
                _ => all,
            };
            let output = tied && tensor.name == "token_embd.weight";
            let bytes = if tensor.is_lookup() && !output {
                tensor.bytes() / (tensor.elements() / tensor.row().max(1)).max(1)
            } else {
                used(tensor.bytes())
            };
            work.bytes = work.bytes.saturating_add(bytes);
            work.active = work.active.saturating_add(used(tensor.elements()));
            // The output matrix is only applied to the last token of a prompt.
            if tensor.layer().is_some() && tensor.dims.len() > 1 {
                work.macs.add(tensor.kind, used(tensor.elements()));
            }
        }
        work
    }
}

fn type_shares(tensors: &[Tensor]) -> Vec<TypeShare> {
    let mut kinds: Vec<(&'static str, u64)> = Vec::new();
    for tensor in tensors {
        match kinds.iter_mut().find(|(kind, _)| *kind == tensor.kind.name()) {
            Some((_, bytes)) => *bytes = bytes.saturating_add(tensor.bytes()),
            None => kinds.push((tensor.kind.name(), tensor.bytes())),
        }
    }
    kinds.sort_by_key(|(kind, bytes)| (std::cmp::Reverse(*bytes), *kind));
    let all = sum(kinds.iter().map(|(_, bytes)| *bytes)).max(1);
    let share = |(kind, bytes): (&'static str, u64)| TypeShare {
        kind,
        bytes: Bytes(bytes),
        share: bytes as f64 / all as f64,
    };
    kinds.into_iter().map(share).collect()
}

/// Returns `value` × `numerator` / `denominator` without overflow. Returns `value` if `denominator` is 0.
pub fn scale(value: u64, numerator: u64, denominator: u64) -> u64 {
    if denominator == 0 {
        return value;
    }
    u64::try_from(u128::from(value) * u128::from(numerator) / u128::from(denominator)).unwrap_or(u64::MAX)
}

/// Returns the sum, or the maximum on overflow, because a damaged header must not cause a panic.
pub fn sum(values: impl Iterator<Item = u64>) -> u64 {
    values.fold(0, u64::saturating_add)
}
