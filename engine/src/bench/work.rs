//! How much a test must at least read and multiply, and so how fast it could be on this machine at most.

use std::path::Path as FilePath;
use std::sync::Arc;

use build_info::roofline::Rates;
use gguf::{GgufFile, TensorInfo};

use super::{Case, Path};
use crate::ffi::{self, DeviceKind, Model};
use crate::model::cache_size;
use crate::options::{ContextOptions, FlashAttention, KvType};
use crate::settings::Settings;

/// Tensors of which a token takes one row: looked up, not multiplied.
const LOOKED_UP: [&str; 4] =
    ["token_embd.weight", "per_layer_token_embd.weight", "position_embd.weight", "token_types.weight"];

/// A test's speed as a share of the machine's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    /// The time that the machine needs at least, over the time that it took: 1 is the roof.
    pub of_roof: f64,
    /// What bounds it.
    pub bound: Bound,
}

/// Which of the two roofs is the lower one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// The read bandwidth.
    Memory,
    /// The multiply-adds.
    Compute,
}

impl Bound {
    /// As it stands in `roof_bound`.
    pub fn name(self) -> &'static str {
        match self {
            Bound::Memory => "memory",
            Bound::Compute => "compute",
        }
    }
}

/// What a model's weights cost.
#[derive(Clone, Debug, PartialEq)]
pub struct Work {
    /// What every token is multiplied with, but for the rest of this.
    body: Amount,
    /// All experts of all layers.
    experts: Amount,
    /// The part of them that one token takes.
    used: f64,
    /// The output matrix: for tokens whose logits are wanted.
    output: Amount,
    /// Bytes of all weights that are read again and again.
    weights: u64,
}

/// Bytes to be read, and multiply-adds by the kind of operands.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Amount {
    bytes: f64,
    int8: f64,
    f32: f64,
    bf16: f64,
}

impl Amount {
    fn of(tensor: &TensorInfo) -> Self {
        let elements: f64 = tensor.dims.iter().map(|dim| *dim as f64).product();
        let mut amount = Amount { bytes: tensor.bytes.0 as f64, ..Amount::default() };
        match tensor.kind.name() {
            // Norms and biases: read, and nothing to speak of computed.
            _ if tensor.dims.len() < 2 => {}
            "bf16" => amount.bf16 = elements,
            // llama.cpp's CPU kernels turn halves into floats.
            _ if tensor.kind.block_elements() == 1 => amount.f32 = elements,
            _ => amount.int8 = elements,
        }
        amount
    }

    fn plus(self, other: Amount) -> Amount {
        Amount {
            bytes: self.bytes + other.bytes,
            int8: self.int8 + other.int8,
            f32: self.f32 + other.f32,
            bf16: self.bf16 + other.bf16,
        }
    }

    /// The bytes of it once, the multiply-adds `tokens` times.
    fn for_tokens(self, tokens: f64) -> Amount {
        Amount {
            bytes: self.bytes,
            int8: self.int8 * tokens,
            f32: self.f32 * tokens,
            bf16: self.bf16 * tokens,
        }
    }

    fn scaled(self, factor: f64) -> Amount {
        Amount { bytes: self.bytes * factor, ..self.for_tokens(factor) }
    }

    /// Seconds that it takes to read and to compute at least.
    fn seconds(self, rates: &Rates) -> (f64, f64) {
        let bf16 = rates.bf16_macs.unwrap_or(rates.f32_macs);
        let compute = self.int8 / rates.int8_macs + self.f32 / rates.f32_macs + self.bf16 / bf16;
        (self.bytes / rates.read_bytes, compute)
    }
}

impl Work {
    /// Reads it from the header of the model's file. `None` for a model whose tensors are not all read for every token
    /// in a way that is known here.
    pub fn of(path: &FilePath) -> Option<Self> {
        let first = GgufFile::open(path).ok()?;
        let rest = first.other_parts().ok()?;
        let architecture = match first.get("general.architecture")? {
            gguf::Value::Scalar(gguf::Scalar::String(name)) => name.clone(),
            _ => return None,
        };
        let number = |key: &str| first.u32(&format!("{architecture}.{key}"));
        let share = match (number("expert_used_count"), number("expert_count")) {
            (Some(used), Some(all)) if (1..=all).contains(&used) => Some(f64::from(used) / f64::from(all)),
            _ => None,
        };
        let tensors: Vec<&TensorInfo> =
            std::iter::once(&first).chain(&rest).flat_map(GgufFile::tensors).collect();
        Work::from_tensors(&tensors, share)
    }

    fn from_tensors(tensors: &[&TensorInfo], used: Option<f64>) -> Option<Self> {
        let tied = !tensors.iter().any(|tensor| tensor.name == "output.weight");
        let (mut body, mut experts, mut output) = (Amount::default(), Amount::default(), Amount::default());
        for tensor in tensors {
            let amount = Amount::of(tensor);
            match tensor.name.as_str() {
                "output.weight" => output = amount,
                // Without an output matrix of its own a model takes the embedding table for it.
                "token_embd.weight" if tied => output = amount,
                name if LOOKED_UP.contains(&name) => {}
                // Layers that predict further tokens, which llama.cpp loads and does not evaluate.
                name if name.contains(".nextn.") => return None,
                name if name.contains("_exps.") => experts = experts.plus(amount),
                _ => body = body.plus(amount),
            }
        }
        let used = if experts.bytes > 0.0 { used? } else { 1.0 };
        let weights = (body.bytes + experts.bytes + output.bytes) as u64;
        Some(Work { body, experts, used, output, weights })
    }

    /// Bytes of all weights that are read again and again.
    pub fn weights(&self) -> u64 {
        self.weights
    }

    /// `n` tokens in one graph, `logits` of them with logits.
    fn graph(&self, n: u32, logits: f64) -> Amount {
        let tokens = f64::from(n);
        // At least the experts of one token are read.
        let experts = self.experts.scaled(self.used).for_tokens(tokens);
        let output = if logits > 0.0 { self.output.for_tokens(logits) } else { Amount::default() };
        self.body.for_tokens(tokens).plus(experts).plus(output)
    }
}

/// A test, as far as its work goes.
#[derive(Clone, Copy, Debug)]
pub struct Test {
    /// Sizes.
    pub case: Case,
    /// Path: end to end the first generated token comes out of the prefill.
    pub path: Path,
    /// Tokens of one call.
    pub n_batch: u32,
    /// Tokens of one graph.
    pub n_ubatch: u32,
    /// Bytes that one token takes in the cache.
    pub cache_bytes: u64,
}

impl Test {
    /// Seconds that it takes at least: with the `prefill` rates for the prompt and the `decode` rates after it; and what
    /// bounds most of that time.
    fn seconds(&self, work: &Work, prefill: &Rates, decode: &Rates) -> (f64, Bound) {
        let (mut memory, mut compute) = (0.0, 0.0);
        let mut add = |(read, computed): (f64, f64)| {
            if read >= computed { memory += read } else { compute += computed }
        };
        let n_ubatch = self.n_ubatch.min(self.n_batch).max(1);
        let mut left = self.case.n_prompt;
        while left > 0 {
            let batch = left.min(self.n_batch.max(1));
            left -= batch;
            let (whole, rest) = (batch / n_ubatch, batch % n_ubatch);
            // The logits of a call's last token are computed.
            let (whole, last) = if rest == 0 { (whole - 1, n_ubatch) } else { (whole, rest) };
            for _ in 0..whole {
                add(work.graph(n_ubatch, 0.0).seconds(prefill));
            }
            add(work.graph(last, 1.0).seconds(prefill));
        }
        let generated = match self.path {
            Path::Kernel => self.case.n_gen,
            Path::EndToEnd => self.case.n_gen.saturating_sub(1),
        };
        let before = self.case.n_depth.saturating_add(self.case.n_prompt);
        for token in 0..generated {
            // Keys and values of the tokens before, and its own.
            let cached = f64::from(before) + f64::from(token) + 1.0;
            let cache = Amount { bytes: cached * self.cache_bytes as f64, ..Amount::default() };
            add(work.graph(1, 1.0).plus(cache).seconds(decode));
        }
        (memory + compute, if memory >= compute { Bound::Memory } else { Bound::Compute })
    }

    /// The share of the roof that `seconds` are; `None` where nothing was to do, or where the weights fit into `caches`
    /// bytes, so that memory is no bound.
    pub fn share(&self, work: &Work, rates: [&Rates; 2], caches: u64, seconds: f64) -> Option<Share> {
        let (least, bound) = self.seconds(work, rates[0], rates[1]);
        let cached = bound == Bound::Memory && work.weights() <= caches;
        let of_roof = least / seconds;
        (!cached && least > 0.0 && of_roof.is_finite()).then_some(Share { of_roof, bound })
    }
}

/// Bytes that one token takes in the cache of `model`; `None` for a model with another kind of cache, and where a GPU
/// takes part, of whose memory nothing is known here.
pub fn cache_bytes(model: &Arc<Model>, settings: &Settings) -> Option<u64> {
    if ffi::devices().iter().any(|(kind, _)| *kind == DeviceKind::Gpu) {
        return None;
    }
    let of_one = |type_k: KvType, type_v: KvType| ContextOptions {
        n_ctx: 1,
        n_batch: 1,
        n_ubatch: 1,
        type_k,
        type_v,
        flash_attention: FlashAttention::Auto,
        interruptible: false,
    };
    cache_size(model, &of_one(settings.type_k.value, settings.type_v.value)).map(|bytes| bytes.0)
}
