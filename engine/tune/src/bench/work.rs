//! Minimum work of a test: the number of bytes to read, and the number of multiply-adds. Together with a machine's
//! rates, this work determines the highest possible speed.

use std::path::Path as FilePath;
use std::sync::Arc;

use build_info::roofline::Rates;
use engine_core::model::cache_size;
use engine_core::settings::Settings;
use gguf::{GgmlType, GgufFile, TensorInfo};
use llama::Model;
use llama::options::{ContextOptions, FlashAttention, KvType};

use super::case::{Case, Path};

/// Names of tensors that are looked up, not multiplied: each token reads one row.
const LOOKED_UP: [&str; 4] =
    ["token_embd.weight", "per_layer_token_embd.weight", "position_embd.weight", "token_types.weight"];

/// Speed of a test as a fraction of the machine's limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    /// Minimum time that the machine needs, divided by the measured time: 1 is the limit.
    pub of_roof: f64,
    /// Limit that applies.
    pub bound: Bound,
}

/// Limit in a roofline model. The lower limit applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// Read bandwidth.
    Memory,
    /// Multiply-adds per second.
    Compute,
}

impl Bound {
    /// Returns the name in the field `roof_bound`.
    pub fn name(self) -> &'static str {
        match self {
            Bound::Memory => "memory",
            Bound::Compute => "compute",
        }
    }
}

/// Cost of a model's weights.
#[derive(Clone, Debug, PartialEq)]
pub struct Work {
    /// Weights that every token is multiplied with, excluding the experts and the output matrix.
    body: Amount,
    /// Experts of all layers.
    experts: Amount,
    /// Fraction of the experts that one token uses.
    used: f64,
    /// Output matrix, for tokens whose logits are needed.
    output: Amount,
    /// Size in bytes of all weights that are read repeatedly.
    weights: u64,
}

/// Number of bytes to read, and number of multiply-adds for each operand type.
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
        let bytes = tensor.bytes.0 as f64;
        match tensor.dims.len() {
            // Norms and biases are read, but need almost no computation.
            0 | 1 => Amount { bytes, ..Amount::default() },
            _ => Amount::of_type(tensor.kind, bytes, elements),
        }
    }

    /// Returns the amount of work: `bytes` bytes to read, and `macs` multiply-adds on weights of the type `kind`.
    fn of_type(kind: GgmlType, bytes: f64, macs: f64) -> Self {
        let mut amount = Amount { bytes, ..Amount::default() };
        match kind.name() {
            "bf16" => amount.bf16 = macs,
            // llama.cpp's CPU kernels convert half-precision floats to single precision.
            _ if kind.block_elements() == 1 => amount.f32 = macs,
            _ => amount.int8 = macs,
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

    /// Returns the amount for `tokens` tokens in one graph, in which the bytes are counted once and the multiply-adds
    /// `tokens` times.
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

    /// Returns the minimum times to read and to compute, in seconds.
    fn seconds(self, rates: &Rates) -> (f64, f64) {
        let bf16 = rates.bf16_macs.unwrap_or(rates.f32_macs);
        let compute = self.int8 / rates.int8_macs + self.f32 / rates.f32_macs + self.bf16 / bf16;
        (self.bytes / rates.read_bytes, compute)
    }
}

impl Share {
    /// Returns the share of the limit for work that took `seconds`. `least` is the shortest possible time, and `bound`
    /// is the limit that determines it. `None` if there was no work. Also `None` if `cached` is true and memory is the
    /// limit, because the bytes then came from the CPU's caches.
    fn new((least, bound): (f64, Bound), cached: bool, seconds: f64) -> Option<Self> {
        let of_roof = least / seconds;
        let is_limited = least > 0.0 && !(cached && bound == Bound::Memory);
        (is_limited && of_roof.is_finite()).then_some(Share { of_roof, bound })
    }

    /// Returns the share of the limit for an operation that read `bytes` bytes of weights or cache, and did `macs`
    /// multiply-adds on operands of the type `kind`.
    pub(super) fn of_operation(
        kind: GgmlType,
        [bytes, macs]: [f64; 2],
        rates: &Rates,
        cached: bool,
        seconds: f64,
    ) -> Option<Self> {
        let (read, computed) = Amount::of_type(kind, bytes, macs).seconds(rates);
        let least = if read >= computed { (read, Bound::Memory) } else { (computed, Bound::Compute) };
        Share::new(least, cached, seconds)
    }
}

impl Work {
    /// Reads the cost from the header of the model's file. Returns `None` if the tensors that every token reads cannot
    /// be determined.
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
                // A model without a separate output matrix uses the embedding table.
                "token_embd.weight" if tied => output = amount,
                name if LOOKED_UP.contains(&name) => {}
                // llama.cpp loads the layers that predict further tokens, but does not evaluate them.
                name if name.contains(".nextn.") => return None,
                name if name.contains("_exps.") => experts = experts.plus(amount),
                _ => body = body.plus(amount),
            }
        }
        let used = if experts.bytes > 0.0 { used? } else { 1.0 };
        let weights = (body.bytes + experts.bytes + output.bytes) as u64;
        Some(Work { body, experts, used, output, weights })
    }

    /// Returns the size in bytes of all weights that are read repeatedly.
    pub fn weights(&self) -> u64 {
        self.weights
    }

    /// Returns the number of bytes of weights that one generated token reads.
    pub fn bytes_per_token(&self) -> u64 {
        self.graph(1, 1.0).bytes as u64
    }

    /// Returns the cost of a graph with `n` tokens, of which `logits` tokens need logits.
    fn graph(&self, n: u32, logits: f64) -> Amount {
        let tokens = f64::from(n);
        // The graph reads at least the experts that one token uses.
        let experts = self.experts.scaled(self.used).for_tokens(tokens);
        let output = if logits > 0.0 { self.output.for_tokens(logits) } else { Amount::default() };
        self.body.for_tokens(tokens).plus(experts).plus(output)
    }
}

/// Properties of a test that determine the work.
#[derive(Clone, Copy, Debug)]
pub struct Test {
    /// Sizes of the test.
    pub case: Case,
    /// Measured path. On the end-to-end path, prefill computes the logits of the first generated token.
    pub path: Path,
    /// Maximum number of tokens in one call.
    pub n_batch: u32,
    /// Maximum number of tokens in one graph.
    pub n_ubatch: u32,
    /// Size of one token in the cache, in bytes.
    pub cache_bytes: u64,
}

impl Test {
    /// Returns the minimum time in seconds, with the `prefill` rates for the prompt and the `decode` rates after the
    /// prompt. Also returns the limit that applies to most of this time.
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
            // Only the last token of a call needs logits.
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
            // The token reads the keys and values of the earlier tokens and its own.
            let cached = f64::from(before) + f64::from(token) + 1.0;
            let cache = Amount { bytes: cached * self.cache_bytes as f64, ..Amount::default() };
            add(work.graph(1, 1.0).plus(cache).seconds(decode));
        }
        (memory + compute, if memory >= compute { Bound::Memory } else { Bound::Compute })
    }

    /// Returns the fraction of the limit for a test that took `seconds`. Returns `None` if there was no work, or if
    /// the weights fit into `caches` bytes, so that memory does not limit the speed.
    pub fn share(&self, work: &Work, rates: [&Rates; 2], caches: u64, seconds: f64) -> Option<Share> {
        Share::new(self.seconds(work, rates[0], rates[1]), work.weights() <= caches, seconds)
    }
}

/// Returns the size of one token in the cache of `model`. Returns `None` if the model has another kind of cache,
/// or if devices other than the CPU compute, because the rates of their memory are unknown.
pub fn cache_bytes(model: &Arc<Model>, settings: &Settings) -> Option<u64> {
    if !model.placed().takers.is_empty() {
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
        kv_offload: true,
        op_offload: true,
    };
    cache_size(model, &of_one(settings.type_k.value, settings.type_v.value)).map(|bytes| bytes.0)
}

#[cfg(test)]
pub(super) mod tests {
    use gguf::write::{Header, TensorSpec, Writer};

    use super::*;

    /// Rates with round numbers: 1 byte, and 100, 10 and 20 multiply-adds per nanosecond.
    pub const RATES: Rates = Rates {
        threads: 1,
        read_bytes: 1e9,
        int8_macs: 1e11,
        int8_wide_macs: None,
        f32_macs: 1e10,
        bf16_macs: Some(2e10),
    };

    fn work(tensors: &[(&str, &[u64], u32)], used: Option<f64>) -> Option<Work> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("model.gguf");
        let specs: Vec<TensorSpec> = tensors
            .iter()
            .map(|(name, dims, kind)| TensorSpec {
                name: name.to_string(),
                dims: dims.to_vec(),
                kind: GgmlType::from_id(*kind).expect("a type"),
            })
            .collect();
        let header = Header { metadata: Vec::new(), tensors: specs.clone() };
        let mut writer =
            Writer::new(std::fs::File::create(&path).expect("a file"), &header).expect("a header");
        for spec in &specs {
            writer.write_data(&vec![0; spec.bytes().expect("a size") as usize]).expect("data");
        }
        writer.finish().expect("a whole file");
        let file = GgufFile::open(&path).expect("a good file");
        Work::from_tensors(&file.tensors().iter().collect::<Vec<_>>(), used)
    }

    fn test(n_prompt: u32, n_gen: u32, n_depth: u32) -> Test {
        let case = Case { n_prompt, n_gen, n_depth };
        Test { case, path: Path::Kernel, n_batch: 128, n_ubatch: 64, cache_bytes: 10 }
    }

    const F32: u32 = 0;
    const Q8_0: u32 = 8;
    const BF16: u32 = 30;

    #[test]
    fn decode_reads_every_weight_and_the_cache_but_one_row_of_the_embedding() {
        let tensors: [(&str, &[u64], u32); 4] = [
            ("token_embd.weight", &[32, 1000], Q8_0),
            ("blk.0.ffn_up.weight", &[32, 100], Q8_0),
            ("output_norm.weight", &[32], F32),
            ("output.weight", &[32, 1000], Q8_0),
        ];
        let work = work(&tensors, None).expect("a plain model");
        // The weights are 1100 rows of 34 bytes (100 in the layers, 1000 in the output matrix), and the norm.
        let weights = 34 * 1100 + 128;
        assert_eq!(work.weights(), weights);
        // At depth 0, a token reads its own key and value; at depth 4, four more.
        for (n_gen, n_depth, cached) in [(1, 0, 1), (1, 4, 5), (2, 4, 5 + 6)] {
            let (seconds, bound) = test(0, n_gen, n_depth).seconds(&work, &RATES, &RATES);
            let expected = f64::from(n_gen) * weights as f64 + f64::from(cached) * 10.0;
            assert!((seconds * 1e9 - expected).abs() < 1e-3, "{n_gen} at {n_depth}: {seconds}");
            assert_eq!(bound, Bound::Memory);
        }
        // End to end, the prefill computes the logits of the first token.
        let whole = Test { path: Path::EndToEnd, ..test(0, 3, 0) };
        let kernel = test(0, 2, 0);
        assert_eq!(whole.seconds(&work, &RATES, &RATES), kernel.seconds(&work, &RATES, &RATES));
    }

    #[test]
    fn prefill_computes_all_weights_for_each_token_and_the_output_once_a_call() {
        let tensors: [(&str, &[u64], u32); 4] = [
            ("token_embd.weight", &[32, 100], Q8_0),
            ("blk.0.a.weight", &[64, 100], Q8_0),
            ("blk.0.b.weight", &[64, 100], BF16),
            ("blk.0.c.weight", &[64, 100], F32),
        ];
        let work = work(&tensors, None).expect("a plain model");
        // Nanoseconds for a token in the layers, and in the output matrix, which is also the embedding table.
        let (body, output) = (64.0 + 320.0 + 640.0, 32.0);
        // A graph of one token is limited by memory reads.
        let single = 6800.0 + 12_800.0 + 25_600.0 + 3400.0;
        let cases = [
            (1, single, Bound::Memory),
            (64, 64.0 * body + output, Bound::Compute),
            (65, 64.0 * body + single, Bound::Compute),
            // Calls of 128 tokens, with the logits of each call's last token.
            (128, 128.0 * body + output, Bound::Compute),
            (512, 512.0 * body + 4.0 * output, Bound::Compute),
            (513, 512.0 * body + 4.0 * output + single, Bound::Compute),
        ];
        for (n, expected, bound) in cases {
            let (seconds, found) = test(n, 0, 0).seconds(&work, &RATES, &RATES);
            assert!((seconds * 1e9 - expected).abs() < 1e-3, "{n}: {seconds}");
            assert_eq!(found, bound, "{n}");
        }
    }

    #[test]
    fn of_experts_only_those_that_are_used_count() {
        let tensors: [(&str, &[u64], u32); 3] = [
            ("output.weight", &[32, 10], Q8_0),
            ("blk.0.attn_q.weight", &[32, 100], Q8_0),
            ("blk.0.ffn_up_exps.weight", &[32, 100, 8], Q8_0),
        ];
        let quarter = work(&tensors, Some(0.25)).expect("experts");
        let graph = quarter.graph(1, 1.0);
        assert_eq!(graph.bytes, 34.0 * (10.0 + 100.0 + 200.0));
        assert_eq!(quarter.graph(3, 0.0).int8, 3.0 * 32.0 * (100.0 + 200.0));
        assert_eq!(work(&tensors, None), None, "nobody knows how many are used");
        let nextn: [(&str, &[u64], u32); 1] = [("blk.9.nextn.eh_proj.weight", &[32, 10], Q8_0)];
        assert_eq!(work(&nextn, None), None, "layers that are not evaluated");
    }

    #[test]
    fn a_share_is_told_only_where_the_roof_is_one() {
        let tensors: [(&str, &[u64], u32); 1] = [("output.weight", &[32, 1000], Q8_0)];
        let work = work(&tensors, None).expect("a plain model");
        let share = |caches, seconds| test(0, 1, 0).share(&work, [&RATES, &RATES], caches, seconds);
        let least = (34_000.0 + 10.0) / 1e9;
        let half = share(0, 2.0 * least).expect("a share");
        assert!((half.of_roof - 0.5).abs() < 1e-9 && half.bound == Bound::Memory, "{half:?}");
        assert_eq!(share(34_000, least), None, "the weights fit into the caches");
        assert_eq!(share(0, 0.0), None, "no time");
    }
}
