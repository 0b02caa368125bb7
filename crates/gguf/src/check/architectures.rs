//! Lists of architectures, grouped by the assertions in their llama.cpp graphs (src/models).

/// Architecture of a multimodal model's projector.
pub(super) const PROJECTOR: &str = "clip";

/// Architectures whose graphs assert that keys and values have the same length.
pub(super) const EQUAL_HEADS: &[&str] = &[
    "afmoe",
    "apertus",
    "arcee",
    "arctic",
    "baichuan",
    "bailingmoe2",
    "bert",
    "bitnet",
    "bloom",
    "chameleon",
    "chatglm",
    "clef",
    "codeshell",
    "cogvlm",
    "cohere2",
    "cohere2moe",
    "command-r",
    "dbrx",
    "deci",
    "deepseek",
    "dots1",
    "dream",
    "ernie4_5",
    "ernie4_5-moe",
    "eurobert",
    "exaone",
    "exaone-moe",
    "exaone4",
    "falcon",
    "glm4",
    "glm4moe",
    "gpt2",
    "gptneox",
    "granite",
    "granite_swa",
    "granitehybrid",
    "granitemoe",
    "graniteswitch",
    "grok",
    "grovemoe",
    "hunyuan-dense",
    "hunyuan-moe",
    "hunyuan_vl",
    "hy_v3",
    "internlm2",
    "jais",
    "jais2",
    "jina-bert-v2",
    "jina-bert-v3",
    "laguna",
    "lfm2",
    "lfm2moe",
    "llada",
    "llada-moe",
    "llama",
    "llama-embed",
    "llama4",
    "maincoder",
    "maple",
    "mellum",
    "minimax-01",
    "minimax-m2",
    "minimax-m3",
    "mistral3",
    "modern-bert",
    "mpt",
    "muse-glimmer",
    "nanbeige",
    "nemotron",
    "nemotron_h",
    "nemotron_h_moe",
    "neo-bert",
    "nomic-bert",
    "nomic-bert-moe",
    "olmo",
    "olmo2",
    "olmoe",
    "openelm",
    "orion",
    "paddleocr",
    "pangu-embedded",
    "phi2",
    "phi3",
    "phimoe",
    "plamo",
    "pockettts",
    "qwen",
    "qwen2",
    "qwen2moe",
    "qwen2vl",
    "qwen3",
    "qwen35",
    "qwen35moe",
    "qwen3moe",
    "qwen3next",
    "qwen3vl",
    "qwen3vlmoe",
    "qwen4exp",
    "refact",
    "rnd1",
    "seed_oss",
    "smallthinker",
    "smollm3",
    "spark2_5",
    "stablelm",
    "starcoder",
    "starcoder2",
    "talkie",
    "xverse",
];

/// Architectures whose graphs assert that RoPE rotates whole heads.
pub(super) const WHOLE_ROPE: &[&str] = &[
    "apertus",
    "arcee",
    "arctic",
    "baichuan",
    "chameleon",
    "codeshell",
    "cogvlm",
    "cohere2moe",
    "dbrx",
    "deci",
    "deepseek",
    "dots1",
    "dream",
    "ernie4_5",
    "ernie4_5-moe",
    "exaone",
    "exaone-moe",
    "exaone4",
    "falcon",
    "granite",
    "granite_swa",
    "granitemoe",
    "graniteswitch",
    "grok",
    "grovemoe",
    "hunyuan-dense",
    "hunyuan-moe",
    "hunyuan_vl",
    "hy_v3",
    "internlm2",
    "jais2",
    "llada",
    "llada-moe",
    "llama",
    "llama-embed",
    "llama4",
    "maincoder",
    "mellum",
    "mistral3",
    "olmo",
    "olmo2",
    "olmoe",
    "orion",
    "paddleocr",
    "pangu-embedded",
    "plamo",
    "pockettts",
    "qwen2",
    "qwen2moe",
    "qwen2vl",
    "qwen3",
    "qwen3moe",
    "qwen3vl",
    "qwen3vlmoe",
    "rnd1",
    "seed_oss",
    "smallthinker",
    "smollm3",
    "starcoder2",
    "talkie",
    "xverse",
];

/// Architectures without RoPE (`llama_model_rope_type`).
pub(super) const NO_ROPE: &[&str] = &[
    "arwkv7",
    "bloom",
    "glm5-next",
    "gpt2",
    "gptj",
    "jais",
    "jamba",
    "jina-bert-v2",
    "kimi-k3",
    "kimi-linear",
    "mamba",
    "mamba2",
    "mpt",
    "nemotron_h",
    "nemotron_h_moe",
    "refact",
    "rwkv6",
    "rwkv6qwen2",
    "rwkv7",
    "t5",
    "t5encoder",
    "wavtokenizer-dec",
];

/// Architectures that rotate half as many elements as their files specify.
pub(super) const HALF_ROPE: &[&str] = &["step35"];

/// Architectures that divide by the first layer's number of heads.
pub(super) const FIRST_LAYER_ATTENDS: &[&str] = &["gemma2", "gemma3"];

/// Architectures whose RoPE always has sections.
pub(super) const ROPE_SECTIONS: &[&str] =
    &["clef", "paddleocr", "qwen2vl", "qwen35", "qwen35moe", "qwen3tts", "qwen3vl", "qwen3vlmoe", "qwen4exp"];

/// Architectures whose graphs assert that the model has experts.
pub(super) const NEEDS_EXPERTS: &[&str] =
    &["bailingmoe2", "glm4moe", "grovemoe", "lfm2moe", "llada-moe", "smallthinker"];

/// Architectures for which one expert in the file means a dense network, as zero experts do.
pub(super) const ONE_EXPERT_IS_NONE: &[&str] = &["hunyuan-dense", "hunyuan_vl"];

/// Architectures that read the gating function from the file and have no default for it.
pub(super) const NEEDS_GATING: &[&str] = &[
    "bailingmoe2",
    "bailingmoe3",
    "deepseek32",
    "dots1",
    "dots3note",
    "exaone-moe",
    "hy_v4",
    "kimi-k3",
    "kimi-linear",
    "lfm2moe",
    "minimax-m2",
    "minimax-m3",
    "smallthinker",
];

/// Further architectures that read the gating function from the file; the value 0 selects a default.
pub(super) const DEFAULT_GATING: &[&str] = &[
    "afmoe",
    "cohere2moe",
    "deepseek2",
    "deepseek2-ocr",
    "glm-dsa",
    "glm4moe",
    "glm5-next",
    "hy_v3",
    "laguna",
    "mistral4",
    "step35",
];

/// Minimum values of hyperparameters that a graph divides by or makes assertions about.
pub(super) const AT_LEAST: &[(&str, &str, i128)] = &[
    ("ernie4_5-moe", "interleave_moe_layer_step", 1),
    ("grovemoe", "experts_per_group", 1),
    ("hrm_text", "hrm.h_cycles", 1),
    ("hrm_text", "hrm.l_cycles", 1),
    ("hrm_text", "hrm.layers_per_stack", 1),
    ("lfm2", "shortconv.l_cache", 2),
    ("lfm2moe", "shortconv.l_cache", 2),
    ("minimax-m3", "attention.indexer.block_size", 1),
    ("nanbeige", "num_loops", 1),
];

/// Architectures with Mamba-2 layers, whose states are divided into heads and groups.
pub(super) const MAMBA_2: &[&str] = &["falcon-h1", "granitehybrid", "mamba2", "nemotron_h", "nemotron_h_moe"];

/// Architectures that assert that the state space is twice as wide as the embedding.
pub(super) const TWICE_AS_WIDE: &[&str] = &["granitehybrid", "jamba"];

/// Architectures with gated delta nets.
pub(super) const DELTA_NET: &[&str] = &["clef", "qwen35", "qwen35moe", "qwen3next", "qwen4exp"];

/// RWKV architectures, with the number of shifted tokens that their graphs assert.
pub(super) const RWKV: &[(&str, i128)] = &[("arwkv7", 1), ("rwkv6", 2), ("rwkv6qwen2", 1), ("rwkv7", 2)];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_rope_is_asserted_only_beside_equal_heads() {
        assert!(WHOLE_ROPE.iter().all(|name| EQUAL_HEADS.contains(name)));
        assert!(WHOLE_ROPE.iter().all(|name| !NO_ROPE.contains(name)));
        for list in
            [EQUAL_HEADS, WHOLE_ROPE, NO_ROPE, ROPE_SECTIONS, NEEDS_EXPERTS, NEEDS_GATING, DEFAULT_GATING]
        {
            assert!(list.windows(2).all(|pair| pair[0] < pair[1]), "not sorted: {list:?}");
        }
    }
}
