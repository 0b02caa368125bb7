//! Shapes of models that need not be on this machine, taken from their authors' config.json.

use gguf::GgmlType;

use super::model_facts::{Metadata, Tensor};

/// Shape of a model.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Name of the shape for `--shape`.
    pub name: &'static str,
    architecture: &'static str,
    vocabulary: u64,
    embedding: u64,
    layers: u64,
    heads: u64,
    kv_heads: u64,
    head: u64,
    /// Width of the feed-forward network, or of one expert.
    feed_forward: u64,
    /// Number of experts in a layer, and number of experts that a token uses.
    experts: Option<(u64, u64)>,
    context: u64,
    tied: bool,
}

const fn llama(name: &'static str, sizes: [u64; 7], context: u64, tied: bool) -> Shape {
    dense(name, "llama", sizes, context, tied)
}

const fn qwen2(name: &'static str, sizes: [u64; 7], context: u64, tied: bool) -> Shape {
    dense(name, "qwen2", sizes, context, tied)
}

/// Creates a shape without experts. `sizes` contains the vocabulary, embedding, layers, heads, heads with keys and
/// values, width of a head, and feed-forward width.
const fn dense(
    name: &'static str,
    architecture: &'static str,
    sizes: [u64; 7],
    context: u64,
    tied: bool,
) -> Shape {
    let [vocabulary, embedding, layers, heads, kv_heads, head, feed_forward] = sizes;
    Shape {
        name,
        architecture,
        vocabulary,
        embedding,
        layers,
        heads,
        kv_heads,
        head,
        feed_forward,
        experts: None,
        context,
        tied,
    }
}

/// Known shapes, starting with the smallest.
pub const SHAPES: &[Shape] = &[
    qwen2("qwen2.5-0.5b", [151_936, 896, 24, 14, 2, 64, 4864], 32_768, true),
    llama("llama-3.2-1b", [128_256, 2048, 16, 32, 8, 64, 8192], 131_072, true),
    qwen2("qwen2.5-1.5b", [151_936, 1536, 28, 12, 2, 128, 8960], 32_768, true),
    llama("llama-3.2-3b", [128_256, 3072, 28, 24, 8, 128, 8192], 131_072, true),
    llama("mistral-7b", [32_000, 4096, 32, 32, 8, 128, 14_336], 32_768, false),
    qwen2("qwen2.5-7b", [152_064, 3584, 28, 28, 4, 128, 18_944], 32_768, false),
    llama("llama-3.1-8b", [128_256, 4096, 32, 32, 8, 128, 14_336], 131_072, false),
    qwen2("qwen2.5-14b", [152_064, 5120, 48, 40, 8, 128, 13_824], 32_768, false),
    Shape {
        architecture: "qwen3moe",
        experts: Some((128, 8)),
        ..llama("qwen3-30b-a3b", [151_936, 2048, 48, 32, 4, 128, 768], 40_960, false)
    },
    qwen2("qwen2.5-32b", [152_064, 5120, 64, 40, 8, 128, 27_648], 32_768, false),
    Shape {
        experts: Some((8, 2)),
        ..llama("mixtral-8x7b", [32_000, 4096, 32, 32, 8, 128, 14_336], 32_768, false)
    },
    llama("llama-3.3-70b", [128_256, 8192, 80, 64, 8, 128, 28_672], 131_072, false),
];

/// Returns the shape called `name`.
pub fn find(name: &str) -> Option<&'static Shape> {
    SHAPES.iter().find(|shape| shape.name == name)
}

impl Shape {
    /// Returns the model's tensors as F16, with llama.cpp's names.
    pub fn tensors(&self) -> Vec<Tensor> {
        let mut tensors = Vec::new();
        let mut put = |name: String, dims: &[u64]| {
            let matrix = dims.len() > 1 && !name.ends_with("ffn_gate_inp.weight");
            let kind = if matrix { GgmlType::F16 } else { GgmlType::F32 };
            tensors.push(Tensor { name, dims: dims.into(), kind });
        };
        let (embedding, width) = (self.embedding, self.feed_forward);
        let (queries, keys) = (self.heads * self.head, self.kv_heads * self.head);
        put("token_embd.weight".into(), &[embedding, self.vocabulary]);
        if !self.tied {
            put("output.weight".into(), &[embedding, self.vocabulary]);
        }
        put("output_norm.weight".into(), &[embedding]);
        for layer in 0..self.layers {
            let name = |part: &str| format!("blk.{layer}.{part}");
            put(name("attn_norm.weight"), &[embedding]);
            put(name("attn_q.weight"), &[embedding, queries]);
            put(name("attn_k.weight"), &[embedding, keys]);
            put(name("attn_v.weight"), &[embedding, keys]);
            put(name("attn_output.weight"), &[queries, embedding]);
            if self.architecture == "qwen2" {
                put(name("attn_q.bias"), &[queries]);
                put(name("attn_k.bias"), &[keys]);
                put(name("attn_v.bias"), &[keys]);
            }
            if self.architecture == "qwen3moe" {
                put(name("attn_q_norm.weight"), &[self.head]);
                put(name("attn_k_norm.weight"), &[self.head]);
            }
            put(name("ffn_norm.weight"), &[embedding]);
            match self.experts {
                None => {
                    put(name("ffn_gate.weight"), &[embedding, width]);
                    put(name("ffn_up.weight"), &[embedding, width]);
                    put(name("ffn_down.weight"), &[width, embedding]);
                }
                Some((count, _)) => {
                    put(name("ffn_gate_inp.weight"), &[embedding, count]);
                    put(name("ffn_gate_exps.weight"), &[embedding, width, count]);
                    put(name("ffn_up_exps.weight"), &[embedding, width, count]);
                    put(name("ffn_down_exps.weight"), &[width, embedding, count]);
                }
            }
        }
        tensors
    }
}

impl Metadata for Shape {
    fn text(&self, key: &str) -> Option<String> {
        match key {
            "general.architecture" => Some(self.architecture.to_string()),
            "general.name" => Some(self.name.to_string()),
            _ => None,
        }
    }

    fn numbers(&self, key: &str) -> Option<Vec<u64>> {
        let value = match key.strip_prefix(self.architecture)? {
            ".block_count" => self.layers,
            ".embedding_length" => self.embedding,
            ".feed_forward_length" => self.feed_forward,
            ".context_length" => self.context,
            ".vocab_size" => self.vocabulary,
            ".attention.head_count" => self.heads,
            ".attention.head_count_kv" => self.kv_heads,
            ".attention.key_length" | ".attention.value_length" => self.head,
            ".expert_count" => self.experts?.0,
            ".expert_used_count" => self.experts?.1,
            _ => return None,
        };
        Some(vec![value])
    }
}
