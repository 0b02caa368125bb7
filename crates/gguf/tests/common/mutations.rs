//! Models that would end a process, each with parts of the expected error.

use gguf::synth::Preset;

use super::edit::{Edit, Put};

/// Change of a valid model.
pub struct Mutation {
    /// Preset of the valid model.
    pub preset: Preset,
    /// Unique name of the change.
    pub name: String,
    /// Function that applies the change.
    pub change: Box<dyn Fn(&mut Edit)>,
    /// Words that the error must contain.
    pub words: Vec<&'static str>,
}

const TOKENS: &str = "tokenizer.ggml.tokens";

/// Returns all mutations.
pub fn all() -> Vec<Mutation> {
    let mut all = List(Vec::new());
    types(&mut all);
    sizes(&mut all);
    heads(&mut all);
    experts(&mut all);
    floats(&mut all);
    tokens(&mut all);
    other_architectures(&mut all);
    all.0
}

struct List(Vec<Mutation>);

impl List {
    fn add(
        &mut self,
        preset: Preset,
        name: &str,
        words: &[&'static str],
        change: impl Fn(&mut Edit) + 'static,
    ) {
        let (name, words) = (name.to_string(), words.to_vec());
        self.0.push(Mutation { preset, name, change: Box::new(change), words });
    }

    /// Adds a mutation that sets `key` of the model `preset` to `value`.
    fn put(&mut self, preset: Preset, key: &'static str, value: Put, words: &[&'static str]) {
        let name = format!("{key} = {value:?}").replace(['/', '"'], "").chars().take(80).collect::<String>();
        self.add(preset, &name, &[&[key], words].concat(), move |edit| edit.put(key, value.clone()));
    }

    fn tiny(&mut self, key: &'static str, value: Put, words: &[&'static str]) {
        self.put(Preset::Tiny, key, value, words);
    }
}

fn types(all: &mut List) {
    let matrices = ["token_embd.weight", "output.weight", "blk.0.attn_q.weight", "blk.1.ffn_down.weight"];
    for name in matrices {
        for kind in ["i8", "i16", "i32", "i64", "f64", "q8_K", "q8_1"] {
            let words = ["has the type", "but must have a type other than"];
            all.add(Preset::Tiny, &format!("{name} as {kind}"), &words, move |edit| edit.retype(name, kind));
        }
    }
    for kind in ["f16", "i32", "q8_0", "bf16", "f64"] {
        for (preset, name) in [
            (Preset::Tiny, "output_norm.weight"),
            (Preset::Tiny, "blk.2.attn_norm.weight"),
            (Preset::SmallQwen2, "blk.0.attn_q.bias"),
            (Preset::BertTiny, "token_embd_norm.bias"),
        ] {
            let words = ["has the type", "but must have f32"];
            all.add(preset, &format!("{name} as {kind}"), &words, move |edit| edit.retype(name, kind));
        }
    }
    all.add(Preset::MoeTiny, "experts as i16", &["blk.0.ffn_up_exps.weight", "i16"], |edit| {
        edit.retype("blk.0.ffn_up_exps.weight", "i16");
    });
    all.add(Preset::MoeTiny, "router as i32", &["blk.0.ffn_gate_inp.weight", "i32"], |edit| {
        edit.retype("blk.0.ffn_gate_inp.weight", "i32");
    });
    all.add(Preset::BertTiny, "positions as i32", &["position_embd.weight", "i32"], |edit| {
        edit.retype("position_embd.weight", "i32");
    });
    all.add(Preset::Tiny, "a dimension of 0", &["blk.0.attn_q.weight", "no dimension may be 0"], |edit| {
        edit.reshape("blk.0.attn_q.weight", &[256, 0]);
    });
}

fn sizes(all: &mut List) {
    for layers in [0, 513, 100_000, u32::MAX] {
        all.tiny("llama.block_count", Put::U32(layers), &["but must be 1 to 512"]);
    }
    all.tiny("llama.block_count", Put::I32(-1), &["is -1", "1 to 512"]);
    all.tiny("llama.context_length", Put::U32(u32::MAX), &["0 to 2147483647"]);
    all.tiny("llama.embedding_length", Put::U32(1 << 31), &["1 to 1048576"]);
    all.tiny("llama.feed_forward_length", Put::U32(u32::MAX), &["0 to 16777216"]);
    all.tiny("llama.pooling_type", Put::U32(7), &["0 to 4"]);
    all.tiny("llama.nextn_predict_layers", Put::U32(5), &["0 to 4, the value of llama.block_count"]);
    all.tiny("llama.feed_forward_length", Put::I32s(vec![512, 512, -1, 512]), &["is -1"]);
    all.put(Preset::SwaTiny, "gemma3.attention.head_count", Put::U32(0), &["at least 1 in the first layer"]);
}

fn heads(all: &mut List) {
    all.tiny("llama.attention.head_count", Put::U32(1 << 20), &["0 to 65536"]);
    all.tiny(
        "llama.attention.head_count_kv",
        Put::U32(3),
        &["is 3", "a divisor of llama.attention.head_count"],
    );
    all.tiny("llama.attention.head_count_kv", Put::I32s(vec![2, 2, 3, 2]), &["in layer 2"]);
    all.tiny("llama.attention.head_count_kv", Put::I32s(vec![2, 4, 2, 2]), &["is 4 in layer 1", "128 / 64"]);
    all.tiny("llama.attention.head_count", Put::I32s(vec![4, 4, 4, 2]), &["is 2 in layer 3", "256 / 64"]);
    let none = Put::U32s(vec![2, 0, 2, 2, 2, 2]);
    all.put(Preset::SwaTiny, "gemma3.attention.head_count_kv", none, &["is 0 in layer 1"]);
    all.tiny("llama.attention.head_count_kv", Put::U32((1 << 31) + 2), &["0 to 65536"]);
    all.tiny(
        "llama.attention.value_length",
        Put::U32(32),
        &["is 32", "llama.attention.key_length, which is 64"],
    );
    all.tiny("llama.attention.key_length", Put::U32(0), &["1 to 65536"]);
    all.tiny("llama.rope.dimension_count", Put::U32(32), &["the length of a head, 64"]);
    let (swa, even) = (Preset::SwaTiny, "even, at least 2 and at most");
    // If RoPE rotates no element, ggml's CPU kernel loops forever.
    for wrong in [0, 31, 4096] {
        all.put(swa, "gemma3.rope.dimension_count", Put::U32(wrong), &[even]);
        all.put(swa, "gemma3.rope.dimension_count_swa", Put::U32(wrong), &[even]);
    }
}

fn experts(all: &mut List) {
    all.tiny("llama.expert_used_count", Put::U32(2), &["is 2", "llama.expert_count is 0 or missing"]);
    all.tiny("llama.expert_count", Put::U32(1 << 20), &["0 to 1024"]);
    all.tiny("llama.expert_group_count", Put::U32(2), &["the model has no experts"]);
    all.add(Preset::Tiny, "experts of which none is used", &["llama.expert_used_count is missing"], |edit| {
        edit.put("llama.expert_count", Put::U32(8));
    });
    let moe = Preset::MoeTiny;
    all.put(moe, "qwen3moe.expert_used_count", Put::U32(9), &["1 to 8"]);
    all.put(moe, "qwen3moe.expert_used_count", Put::U32(0), &["1 to 8"]);
    all.put(moe, "qwen3moe.expert_used_count", Put::U32(u32::MAX), &["0 to 1024"]);
    all.put(moe, "qwen3moe.expert_used_count", Put::U32s(vec![2, 0, 2]), &["0 in layer 1"]);
    all.put(moe, "qwen3moe.expert_group_count", Put::U32(3), &["a divisor of 8, the number of experts"]);
    all.put(moe, "qwen3moe.expert_group_count", Put::U32(8), &["less than 8, the number of experts"]);
    all.add(moe, "groups of which none is used", &["expert_group_used_count", "1 to 1"], |edit| {
        edit.put("qwen3moe.expert_group_count", Put::U32(2));
    });
}

fn floats(all: &mut List) {
    const EPSILON: &str = "llama.attention.layer_norm_rms_epsilon";
    for value in [f32::NAN, -1e-5, f32::INFINITY, f32::NEG_INFINITY] {
        all.tiny(EPSILON, Put::F32(value), &["finite and at least 0"]);
    }
    all.put(Preset::BertTiny, "bert.attention.layer_norm_epsilon", Put::F32(f32::NAN), &["finite"]);
    all.tiny("llama.rope.freq_base", Put::F32(f32::NAN), &["finite and at least 0"]);
    all.tiny("llama.rope.freq_base", Put::F32(-10_000.0), &["finite and at least 0"]);
    all.tiny("llama.rope.scaling.factor", Put::F32(f32::NAN), &["a finite number"]);
    all.tiny("llama.rope.scaling.attn_factor", Put::F32(f32::INFINITY), &["a finite number"]);
    all.tiny("llama.attention.scale", Put::F32(f32::NAN), &["a finite number"]);
    let unknown = Put::Text("spiral".into());
    all.tiny("llama.rope.scaling.type", unknown, &["\"spiral\"", "one of none, linear, yarn, longrope"]);
}

fn tokens(all: &mut List) {
    let tokens = |all: &mut List, name: &str, words: &[&'static str], change: fn(&mut Vec<Vec<u8>>)| {
        all.add(Preset::Tiny, name, &[&[TOKENS], words].concat(), move |edit| {
            edit.change_texts(TOKENS, change)
        });
    };
    let twice = &["twice, as token 4 and as token 5", "texts must be unique"];
    tokens(all, "one token text twice", twice, |tokens| tokens[5] = tokens[4].clone());
    tokens(all, "a text that is cut at its zero byte", twice, |tokens| {
        tokens[5] = [&tokens[4][..], b"\0more"].concat();
    });
    tokens(all, "the name of an empty text", &["[EMPTY_5]", "token 5 and as token 6"], |tokens| {
        tokens[5] = Vec::new();
        tokens[6] = b"[EMPTY_5]".to_vec();
    });
    tokens(all, "no tokens", &["a list of 0 tokens"], |tokens| tokens.clear());
    all.add(Preset::Tiny, "a long token in a tree", &["token 9", "at most 1024"], |edit| {
        edit.put("tokenizer.ggml.model", Put::Text("t5".into()));
        edit.change_texts(TOKENS, |tokens| tokens[9] = vec![b'a'; 60_000]);
    });
    all.add(Preset::Tiny, "a score that is NaN", &["tokenizer.ggml.scores", "NaN for token 0"], |edit| {
        edit.put("tokenizer.ggml.model", Put::Text("llama".into()));
        edit.put("tokenizer.ggml.scores", Put::F32s(vec![f32::NAN; 2048]));
    });
    for (model, key) in [("gemma4", "tokenizer.ggml.bos_token_id"), ("t5", "tokenizer.ggml.bos_token_id")] {
        all.add(
            Preset::Tiny,
            &format!("{model} without a first token"),
            &[key, "begins every text"],
            move |edit| {
                edit.put("tokenizer.ggml.model", Put::Text(model.into()));
                edit.put("tokenizer.ggml.add_bos_token", Put::Bool(true));
                edit.remove(key);
            },
        );
    }
    all.add(
        Preset::Tiny,
        "word pieces that are bytes",
        &["tokenizer.ggml.token_type", "for token 0"],
        |edit| {
            edit.put("tokenizer.ggml.model", Put::Text("bert".into()));
            edit.put("tokenizer.ggml.token_type", Put::I32s(vec![6; 2048]));
        },
    );
    all.add(Preset::Tiny, "a first token outside", &["is 999999", "a token number below 2048"], |edit| {
        edit.put("tokenizer.ggml.pre", Put::Text("glm4".into()));
        edit.put("tokenizer.ggml.add_bos_token", Put::Bool(true));
        edit.put("tokenizer.ggml.bos_token_id", Put::U32(999_999));
    });
    all.add(Preset::Tiny, "no texts and too many tokens", &["llama.vocab_size", "at most 2048"], |edit| {
        edit.put("tokenizer.ggml.model", Put::Text("none".into()));
        edit.put("llama.vocab_size", Put::U32(u32::MAX));
    });
    all.add(Preset::Tiny, "a projector", &["clip", "give the file of the language model"], |edit| {
        edit.put("general.architecture", Put::Text("clip".into()));
    });
}

/// Adds files that claim another architecture. Validation fails before missing tensors matter.
fn other_architectures(all: &mut List) {
    /// Architecture, values, and words of the error.
    type Case = (&'static str, &'static [(&'static str, u32)], &'static [&'static str]);
    let cases: [Case; 17] = [
        ("qwen35", &[("full_attention_interval", 0)], &["full_attention_interval", "1 to"]),
        ("lfm2", &[("shortconv.l_cache", 1)], &["shortconv.l_cache", "2 to"]),
        ("ernie4_5-moe", &[("interleave_moe_layer_step", 0)], &["interleave_moe_layer_step", "1 to"]),
        ("nanbeige", &[("num_loops", 0)], &["num_loops"]),
        ("grovemoe", &[("experts_per_group", 0)], &["experts_per_group"]),
        ("mamba2", &[("ssm.group_count", 0)], &["ssm.group_count", "at least 1"]),
        (
            "mamba2",
            &[("ssm.inner_size", 512), ("ssm.time_step_rank", 7)],
            &["ssm.time_step_rank", "a divisor"],
        ),
        ("jamba", &[("embedding_length", 256), ("ssm.inner_size", 500)], &["ssm.inner_size", "twice"]),
        (
            "qwen3next",
            &[("ssm.group_count", 3), ("ssm.time_step_rank", 8)],
            &["ssm.group_count", "a divisor"],
        ),
        (
            "qwen3next",
            &[("ssm.inner_size", 64), ("ssm.time_step_rank", 8), ("ssm.state_size", 16)],
            &["ssm.inner_size", "= 128"],
        ),
        ("rwkv7", &[("wkv.head_size", 0)], &["wkv.head_size", "at least 1"]),
        ("rwkv6", &[("token_shift_count", 1)], &["token_shift_count", "must be 2"]),
        ("bailingmoe2", &[("expert_count", 0)], &["expert_count", "0 or missing"]),
        ("dots1", &[("expert_count", 8), ("expert_used_count", 2)], &["expert_gating_func", "sigmoid"]),
        (
            "glm4moe",
            &[("expert_count", 8), ("expert_used_count", 2), ("expert_gating_func", 9)],
            &["expert_gating_func", "is 9"],
        ),
        ("gemma2", &[("attention.head_count", 0)], &["attention.head_count", "first layer"]),
        (
            "phi2",
            &[("attention.head_count", 4), ("attention.key_length", 64), ("attention.value_length", 32)],
            &["value_length"],
        ),
    ];
    for (number, (architecture, values, words)) in cases.into_iter().enumerate() {
        all.add(Preset::Tiny, &format!("{architecture} {number}"), words, move |edit| {
            edit.become_architecture("llama", architecture);
            for (key, value) in values {
                edit.put(&format!("{architecture}.{key}"), Put::U32(*value));
            }
            // Layers with a recurrent state are detected by their tensors.
            if let Some(tensor) =
                edit.tensors.iter_mut().find(|tensor| tensor.name == "blk.0.attn_norm.weight")
            {
                tensor.name = "blk.0.ssm_norm.weight".into();
            }
        });
    }
    all.add(
        Preset::Tiny,
        "sections of 0",
        &["qwen2vl.rope.dimension_sections", "at least 1 in one"],
        |edit| {
            edit.become_architecture("llama", "qwen2vl");
            edit.put("qwen2vl.rope.dimension_sections", Put::I32s(vec![0, 0, 0, 8]));
        },
    );
    all.add(
        Preset::Tiny,
        "no sections",
        &["paddleocr.rope.dimension_sections", "at least 1 in one"],
        |edit| {
            edit.become_architecture("llama", "paddleocr");
        },
    );
    all.add(
        Preset::SwaTiny,
        "half of one element",
        &["step35.rope.dimension_count", "after halving"],
        |edit| {
            edit.become_architecture("gemma3", "step35");
            edit.put("step35.rope.dimension_count", Put::U32(2));
        },
    );
    all.add(Preset::Tiny, "a negative section", &["glm4.rope.dimension_sections", "0 to 65535"], |edit| {
        edit.become_architecture("llama", "glm4");
        edit.put("glm4.rope.dimension_sections", Put::I32s(vec![-8, 8, 8, 0]));
    });
}
