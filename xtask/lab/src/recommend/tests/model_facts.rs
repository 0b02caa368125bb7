//! Tests of the weights, work and caches of models, and of invalid headers.

use build_info::Bytes;
use gguf::GgmlType;

use super::{answer, host, roofline, shape};
use crate::recommend::model_facts::{Macs, Metadata, ModelFacts, Tensor};
use crate::recommend::shapes;
use crate::recommend::subject::read_model;

#[test]
fn shapes_have_the_published_numbers_of_parameters() {
    let cases: [(&str, u64); 12] = [
        ("qwen2.5-0.5b", 494_032_768),
        ("llama-3.2-1b", 1_235_814_400),
        ("qwen2.5-1.5b", 1_543_714_304),
        ("llama-3.2-3b", 3_212_749_824),
        ("mistral-7b", 7_241_732_096),
        ("qwen2.5-7b", 7_615_616_512),
        ("llama-3.1-8b", 8_030_261_248),
        ("qwen2.5-14b", 14_770_033_664),
        ("qwen3-30b-a3b", 30_532_122_624),
        ("qwen2.5-32b", 32_763_876_352),
        ("mixtral-8x7b", 46_702_792_704),
        ("llama-3.3-70b", 70_553_706_496),
    ];
    assert_eq!(
        cases.map(|(name, _)| name).to_vec(),
        shapes::SHAPES.iter().map(|shape| shape.name).collect::<Vec<_>>()
    );
    for (name, parameters) in cases {
        assert_eq!(shape(name, "F16").parameters, parameters, "{name}");
    }
}

#[test]
fn the_work_of_a_token_is_counted() {
    let llama = shape("llama-3.1-8b", "F16");
    // Each weight has 2 bytes; the weights of the 65 norms of 4,096 have 4 bytes.
    assert_eq!(llama.weights.0, 2 * 8_030_261_248 + 2 * 65 * 4096);
    // Decode reads all weights, except that it reads only one row of the embedding.
    assert_eq!(llama.bytes_per_token.0, llama.weights.0 - 2 * 128_256 * 4096 + 2 * 4096);
    // Each layer has q and o, k and v, and three matrices of the feed-forward network.
    let layer = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14_336;
    assert_eq!(llama.prefill_macs, Macs { half: 32 * layer, ..Macs::default() });
    // There are 32 layers with keys and values, each with 8 heads of 128.
    assert_eq!((llama.kv.f16.0, llama.kv.q8_0), (32 * 2 * 1024 * 2, Some(Bytes(32 * 2 * 1024 / 32 * 34))));
    assert!(llama.kv.exact && llama.notes.is_empty(), "{:?}", llama.notes);

    // Decode reads a tied embedding completely, as the output matrix.
    let tied = shape("qwen2.5-1.5b", "Q8_0");
    assert_eq!(tied.bytes_per_token, tied.weights);

    let mixture = shape("qwen3-30b-a3b", "F16");
    let experts: u64 = 48 * 128 * 3 * 2048 * 768;
    assert_eq!(mixture.expert_weights.0, 2 * experts);
    assert_eq!(mixture.active_parameters, 30_532_122_624 - experts + experts / 16);
    let embedding = 2 * 151_936 * 2048;
    let expected = mixture.weights.0 - 2 * experts + 2 * experts / 16 - embedding + 2 * 2048;
    assert_eq!(mixture.bytes_per_token.0, expected);
}

/// Header with these keys.
struct Keys(Vec<(&'static str, Vec<u64>)>);

impl Metadata for Keys {
    fn text(&self, key: &str) -> Option<String> {
        (key == "general.architecture" && !self.0.is_empty()).then(|| "llama".to_string())
    }

    fn numbers(&self, key: &str) -> Option<Vec<u64>> {
        let key = key.strip_prefix("llama.")?;
        self.0.iter().find(|(name, _)| *name == key).map(|(_, values)| values.clone())
    }
}

#[test]
fn layers_may_differ_in_keys_and_values() {
    let sizes = |kv_heads: Vec<u64>, more: &[(&'static str, u64)]| {
        let mut keys = vec![
            ("block_count", vec![3]),
            ("embedding_length", vec![256]),
            ("attention.head_count", vec![4]),
            ("attention.head_count_kv", kv_heads),
        ];
        keys.extend(more.iter().map(|(name, value)| (*name, vec![*value])));
        let tensor = Tensor { name: "output.weight".into(), dims: vec![256, 8], kind: GgmlType::F16 };
        ModelFacts::read(&Keys(keys), vec![tensor], "m").unwrap().kv
    };
    // Keys and values each have heads of 256 / 4 = 64 elements of 2 bytes.
    let one = |heads: u64| 2 * 2 * 64 * heads;
    let cases = [
        (sizes(vec![2], &[]), 3, one(6)),
        (sizes(vec![4, 0, 1], &[]), 2, one(5)),
        (sizes(vec![], &[]), 3, one(12)),
        // Latent attention only has keys.
        (
            sizes(
                vec![1],
                &[
                    ("attention.key_length", 576),
                    ("attention.key_length_mla", 192),
                    ("attention.value_length_mla", 128),
                ],
            ),
            3,
            3 * 2 * 576,
        ),
    ];
    for (kv, layers, bytes) in cases {
        assert_eq!((kv.layers, kv.f16.0, kv.exact), (layers, bytes, true));
    }
    let window = sizes(vec![2], &[("attention.sliding_window", 1024)]);
    assert!(!window.exact && window.notes[0].contains("only 1024 tokens"), "{:?}", window.notes);
}

#[test]
fn headers_that_lie_are_refused_or_survived() {
    let host = host("ryzen-7950x-4060ti");
    let wild = u64::MAX;
    let tensors = || {
        let tensor = |name: &str, dims: &[u64], id| Tensor {
            name: name.to_string(),
            dims: dims.to_vec(),
            kind: GgmlType::from_id(id).unwrap(),
        };
        vec![
            tensor("token_embd.weight", &[wild, wild], 1),
            tensor("output.weight", &[0, 0], 12),
            tensor("blk.0.attn_v.weight", &[], 0),
            tensor("blk.18446744073709551615.ffn_down.weight", &[wild, 2, 2], 0),
            tensor("blk.0.ffn_up_exps.weight", &[7, wild, wild, wild], 1),
            tensor("blk.x.ffn_down_exps.weight", &[256, 3, 3], 14),
        ]
    };
    let names = [
        "block_count",
        "embedding_length",
        "feed_forward_length",
        "context_length",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.value_length",
        "attention.sliding_window",
        "expert_count",
        "expert_used_count",
    ];
    let mut survived = 0;
    for layers in [0, 1, 3, 512, 513, wild] {
        for value in [0, 1, 255, 1 << 32, wild - 1, wild] {
            for missing in ["", "attention.head_count", "context_length", "embedding_length"] {
                let keys = names.map(|name| (name, vec![if name == "block_count" { layers } else { value }]));
                let keys = Keys(keys.into_iter().filter(|(name, _)| *name != missing).collect());
                let Ok(model) = ModelFacts::read(&keys, tensors(), "m.gguf") else {
                    assert!(layers == 0 || layers > 512);
                    continue;
                };
                for n_ctx in [None, Some(1), Some(1 << 28)] {
                    let answer = answer(&model, &host, Some(&roofline("x")), n_ctx);
                    assert!(!answer.to_string().is_empty());
                    assert!(serde_json::to_string(&answer).unwrap().contains("verdict"));
                    survived += 1;
                }
            }
        }
    }
    assert!(survived > 100);
    let refused =
        |keys: Keys, tensors| format!("{:#}", ModelFacts::read(&keys, tensors, "m.gguf").unwrap_err());
    assert!(refused(Keys(vec![]), tensors()).contains("not a language model"));
    assert!(refused(Keys(vec![("x", vec![])]), tensors()).contains("has no layers"));
    assert!(refused(Keys(vec![("block_count", vec![513])]), tensors()).contains("supports at most 512"));
    assert!(refused(Keys(vec![("block_count", vec![2])]), vec![]).contains("no weights"));
}

#[test]
fn all_parts_of_a_split_model_are_counted() {
    use gguf::write::{Header, Meta, TensorSpec, Writer};
    let folder = tempfile::tempdir().unwrap();
    let part = |number: u32| {
        let mut metadata =
            vec![("split.no".to_string(), Meta::U32(number)), ("split.count".to_string(), Meta::U32(2))];
        if number == 0 {
            metadata.push(("general.architecture".into(), Meta::String("llama".into())));
            metadata.push(("llama.block_count".into(), Meta::U32(2)));
            metadata.push(("llama.embedding_length".into(), Meta::U32(64)));
            metadata.push(("llama.attention.head_count".into(), Meta::U32(4)));
            metadata.push(("llama.attention.head_count_kv".into(), Meta::I32s(vec![2, 1])));
        }
        let name = format!("blk.{number}.ffn_up.weight");
        let tensors = vec![TensorSpec { name, dims: vec![64, 8], kind: GgmlType::F16 }];
        let header = Header { metadata, tensors };
        let mut writer = Writer::new(Vec::new(), &header).unwrap();
        writer.write_data(&[0; 1024]).unwrap();
        let path = folder.path().join(format!("m-{:05}-of-00002.gguf", number + 1));
        std::fs::write(&path, writer.finish().unwrap()).unwrap();
        path
    };
    let (first, second) = (part(0), part(1));
    let model = read_model(&first).unwrap();
    assert_eq!((model.weights.0, model.parameters, model.layers), (2048, 1024, 2));
    // Keys and values have heads of 64 / 4 elements of 2 bytes; the layers have 2 heads and 1 head.
    assert_eq!(model.kv.f16.0, 16 * 3 * 2 * 2);
    assert_eq!(model.name, "m-00001-of-00002.gguf");
    std::fs::remove_file(second).unwrap();
    let error = format!("{:#}", read_model(&first).unwrap_err());
    assert!(error.contains("put all parts into one folder"), "{error}");
}
