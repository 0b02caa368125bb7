//! Tests of the options for adapters and RoPE scaling: their effect, and rejected values.

use std::path::{Path, PathBuf};

use engine_core::runtime_host::RuntimeHost;
use engine_core::settings::{Requested, Settings};
use gguf::GgufFile;
use llama::Context;
use serde_json::Value;

use crate::common::{anneal, on_tiny, parts, tiny};

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// Writes an adapter of the tiny model to `folder`.
fn adapter(folder: &Path, seed: u64) -> PathBuf {
    let path = folder.join(format!("adapter-{seed}.gguf"));
    gguf::synth::write_adapter(&path, &GgufFile::open(tiny()).expect("a model"), seed).expect("an adapter");
    path
}

fn run(more: &[&str]) -> Value {
    let arguments =
        [&["-p", "Once upon a time there was", "-n", "12", "--greedy", "--json", "-c", "512"], more];
    serde_json::from_str(&on_tiny("run", &arguments.concat())).expect("JSON")
}

fn tokens(more: &[&str]) -> Value {
    run(more)["tokens"].clone()
}

fn refused(more: &[&str]) -> (Option<i32>, String) {
    let arguments = [&["run", "-m", text(tiny()), "-p", "a", "-n", "1", "--greedy"], more].concat();
    let (code, _, stderr) = parts(&anneal(&arguments));
    (code, stderr)
}

#[test]
fn an_adapter_counts_by_its_scale() {
    let folder = tempfile::tempdir().expect("a folder");
    let first = adapter(folder.path(), 1);
    let second = adapter(folder.path(), 2);
    let first = text(&first);
    let plain = tokens(&[]);
    assert_eq!(tokens(&["--lora", &format!("{first}:0")]), plain);
    let adapted = tokens(&["--lora", first]);
    assert_ne!(adapted, plain);
    assert_eq!(tokens(&["--lora", &format!("{first}:1")]), adapted);
    assert_ne!(tokens(&["--lora", &format!("{first}:-1")]), adapted);
    let both = tokens(&["--lora", first, "--lora", text(&second)]);
    assert!(both != adapted && both != plain, "{both}");
    // The adapter also applies to repacked weights, to weights in the file's layout, and to a prompt that is
    // evaluated in either layout.
    assert_eq!(tokens(&["--lora", first, "--no-repack"]).as_array().map(Vec::len), Some(12));
}

#[test]
fn a_prompt_cache_tells_adapters_and_scalings_apart() {
    let folder = tempfile::tempdir().expect("a folder");
    let (first, second) = (adapter(folder.path(), 1), adapter(folder.path(), 2));
    let half = format!("{}:0.5", text(&first));
    let cache = folder.path().join("cache");
    let variants: [&[&str]; 6] = [
        &[],
        &["--lora", text(&first)],
        &["--lora", &half],
        &["--lora", text(&second)],
        &["--rope-freq-base", "50000"],
        &["--rope-scaling", "yarn", "--rope-scale", "2"],
    ];
    for more in variants {
        let expected = tokens(more);
        for cached in [false, true] {
            let found = run(&[more, &["--prompt-cache", text(&cache)]].concat());
            assert_eq!(found["tokens"], expected, "{more:?}, cached: {cached}");
            assert_eq!(found["cached_tokens"].as_u64().is_some_and(|tokens| tokens > 0), cached, "{more:?}");
        }
    }
}

/// Writes a copy of the file at `path` to `to`, with `from` replaced by `by`, which has the same length.
fn changed(path: &Path, to: &Path, from: &[u8], by: &[u8]) {
    assert_eq!(from.len(), by.len());
    let mut bytes = std::fs::read(path).expect("a file");
    let at = bytes.windows(from.len()).position(|window| window == from).expect("the bytes to change");
    bytes[at..at + by.len()].copy_from_slice(by);
    std::fs::write(to, bytes).expect("written");
}

#[test]
fn adapters_that_do_not_fit_are_refused_with_a_word() {
    let folder = tempfile::tempdir().expect("a folder");
    let good = adapter(folder.path(), 1);
    let bad = folder.path().join("bad.gguf");
    let key = |key: &str, kind: u32| [key.as_bytes(), &kind.to_le_bytes()].concat();
    let tensor = |name: &str, dims: [u64; 2]| {
        let dims: Vec<u8> = dims.iter().flat_map(|dim| dim.to_le_bytes()).collect();
        [name.as_bytes(), &2u32.to_le_bytes(), &dims].concat()
    };
    let (a, b) = ("blk.0.attn_q.weight.lora_a", "blk.0.attn_q.weight.lora_b");
    let cases: [(Vec<u8>, Vec<u8>, &str); 6] = [
        (
            b"adapter.type\x08\0\0\0\x04\0\0\0\0\0\0\0lora".to_vec(),
            b"adapter.type\x08\0\0\0\x04\0\0\0\0\0\0\0alto".to_vec(),
            "type \"alto\"",
        ),
        (b"\x05\0\0\0\0\0\0\0llama".to_vec(), b"\x05\0\0\0\0\0\0\0qwen2".to_vec(), "the architecture qwen2"),
        // An integer instead of a float would fail an assertion in llama.cpp.
        (key("adapter.lora.alpha", 6), key("adapter.lora.alpha", 4), "adapter.lora.alpha"),
        (
            b"blk.0.attn_q.weight.lora_a".to_vec(),
            b"blk.9.attn_q.weight.lora_a".to_vec(),
            "no blk.9.attn_q.weight.lora_b",
        ),
        // The tensor's size does not change, so the file remains complete.
        (tensor(a, [256, 8]), tensor(a, [8, 256]), "do not fit"),
        (tensor(b, [8, 256]), tensor(b, [16, 128]), "do not fit"),
    ];
    for (from, to, words) in cases {
        changed(&good, &bad, &from, &to);
        let (code, stderr) = refused(&["--lora", text(&bad)]);
        assert_eq!(code, Some(1), "{words}: {stderr}");
        assert!(stderr.contains(words) && stderr.contains("bad.gguf"), "{words}: {stderr}");
        assert!(!stderr.contains("llama.cpp aborted"), "the adapter reached llama.cpp: {stderr}");
    }
    let whole = std::fs::read(&good).expect("a file");
    std::fs::write(&bad, &whole[..whole.len() - 100]).expect("written");
    for (path, words) in
        [(text(&bad), "bad.gguf"), ("/no/such/file", "/no/such/file"), (text(tiny()), "is not an adapter")]
    {
        let (code, stderr) = refused(&["--lora", path]);
        assert_eq!(code, Some(1), "{stderr}");
        assert!(stderr.contains(words), "{stderr}");
    }
    for wrong in [":1", "a.gguf:NaN", "a.gguf:1e30", ""] {
        assert_eq!(refused(&["--lora", wrong]).0, Some(2), "{wrong:?}");
    }
}

#[test]
fn every_context_of_a_model_has_its_adapters() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = adapter(folder.path(), 1);
    let runtime_host = RuntimeHost::default();
    let embedding = |adapters: Vec<engine::Adapter>| {
        let variant = engine::Variant { adapters, ..engine::Variant::default() };
        let options = Requested { n_ctx: Some(512), variant, ..Requested::default() };
        let model = engine::Model::load(tiny(), &options).expect("it loads");
        model.embedder().expect("one").embed(&["Once upon a time"]).expect("an embedding").remove(0)
    };
    let one = engine::Adapter { path: path.clone(), scale: 1.0 };
    assert_ne!(embedding(vec![one.clone()]), embedding(vec![]));

    let variant = engine::Variant { adapters: vec![one], ..engine::Variant::default() };
    let settings =
        Settings::resolve(&Requested { variant, ..Requested::default() }, &runtime_host).expect("valid");
    let model = engine_core::model::open(tiny(), &settings, &runtime_host).expect("it loads");
    let prompt = model.tokenize("Once upon a time").expect("tokens");
    let mut alone = engine_core::model::context(&model, &settings, &runtime_host, false).expect("a context");
    alone.decode(&prompt).expect("evaluated");
    let options = llama::options::ContextOptions {
        n_ctx: 512,
        n_batch: 512,
        n_ubatch: 512,
        type_k: settings.type_k.value,
        type_v: settings.type_v.value,
        flash_attention: settings.flash_attention.value,
        interruptible: false,
        kv_offload: settings.kv_offload.value,
        op_offload: settings.op_offload.value,
    };
    let mut shared = Context::shared(&model, &options, 4).expect("a context");
    shared.decode(&prompt).expect("evaluated");
    let near = |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 0.05);
    let row = alone.logits().expect("logits").to_vec();
    assert!(near(&row, shared.logits().expect("logits")), "the shared context has other adapters");
}

#[test]
fn rope_is_the_models_unless_asked() {
    let plain = tokens(&[]);
    for same in [&["--rope-scaling", "none"][..], &["--rope-freq-base", "10000"], &["--rope-scale", "1"]] {
        assert_eq!(tokens(same), plain, "{same:?}");
    }
    let others: [&[&str]; 4] = [
        &["--rope-freq-base", "500"],
        &["--rope-scaling", "linear", "--rope-scale", "4"],
        &["--rope-scaling", "yarn", "--rope-scale", "4"],
        &["--rope-scaling", "yarn", "--rope-scale", "4", "--yarn-orig-ctx", "256"],
    ];
    let found: Vec<Value> = others.iter().map(|more| tokens(more)).collect();
    for (more, tokens) in others.iter().zip(&found) {
        assert_ne!(*tokens, plain, "{more:?}");
    }
    assert_eq!(tokens(&["--rope-scaling", "linear", "--rope-freq-scale", "0.25"]), found[1]);
}

#[test]
fn scalings_that_cannot_be_meant_are_wrong_usage() {
    let cases: [(&[&str], &str); 7] = [
        (&["--rope-scale", "0"], "above 0"),
        (&["--rope-scale", "nan"], "above 0"),
        (&["--rope-scale", "2", "--rope-freq-scale", "0.5"], "set the same factor"),
        (&["--rope-scaling", "none", "--rope-scale", "2"], "cannot be used with a scale"),
        (&["--rope-scaling", "yarn"], "--rope-scale 2"),
        (&["--yarn-beta-fast", "8"], "--rope-scaling yarn"),
        (&["--rope-scaling", "cubic"], "none, linear, yarn"),
    ];
    for (more, words) in cases {
        let (code, stderr) = refused(more);
        assert_eq!(code, Some(2), "{more:?}: {stderr}");
        assert!(stderr.contains(words), "{more:?}: {stderr}");
    }
    let (code, stderr) = refused(&["-c", "8192"]);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stderr.contains("trained for 4096 tokens") && stderr.contains("--rope-scale 2"), "{stderr}");
    for fine in [&["-c", "4096"][..], &["-c", "8192", "--rope-scaling", "yarn", "--rope-scale", "2"]] {
        assert!(!refused(fine).1.contains("warning"), "{fine:?}");
    }
}

/// A context with YaRN changes llama.cpp's state of the model. The next context must not be affected by this change.
#[test]
fn the_second_context_is_as_the_first() {
    let rope = engine::Rope {
        scaling: Some(engine::RopeScaling::Yarn),
        scale: Some(4.0),
        ..engine::Rope::default()
    };
    let variant = engine::Variant { rope, ..engine::Variant::default() };
    let options = Requested { n_ctx: Some(512), variant, ..Requested::default() };
    let model = engine::Model::load(tiny(), &options).expect("it loads");
    let mut rows = (0..2).map(|_| {
        let mut session = model.session().expect("a session");
        session.push("Once upon a time there was").expect("tokens");
        session.logits().expect("logits").to_vec()
    });
    assert_eq!(rows.next(), rows.next());
    assert_eq!(model.trained_context(), 4096);
}
