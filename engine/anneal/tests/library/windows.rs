//! Tests of models that are not plain decoders: one with a sliding window, and one for embeddings only.

use std::path::{Path, PathBuf};

use engine::{Error, Model, Options, Sampler, Session, Token};
use gguf::synth::{self, Preset};

use crate::common::{anneal, has_exact_kernels, parts};

fn made(folder: &Path, preset: Preset) -> PathBuf {
    let path = folder.join(format!("{preset}.gguf"));
    synth::write(&path, &synth::SynthOptions::new(preset)).expect("a model");
    path
}

fn load(folder: &Path, preset: Preset) -> Model {
    let options = Options { n_ctx: Some(512), decode_threads: Some(1), ..Options::default() };
    Model::load(made(folder, preset), &options).expect("it loads")
}

fn greedy(session: &mut Session, most: usize) -> Vec<Token> {
    let mut sampler = Sampler::greedy(session.model()).expect("a sampler");
    let tokens = session.generate(&mut sampler, most).ignore_end();
    tokens.map(|piece| piece.expect("a token").token).collect()
}

#[test]
fn text_taken_back_beyond_a_window_is_evaluated_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = load(folder.path(), Preset::SwaTiny);
    let mut session = model.session().expect("a session");
    session.push("Once upon a time").expect("tokens");
    let prompt = session.tokens().len();
    // The number of tokens exceeds the window of 128.
    let first = greedy(&mut session, 300);
    assert_eq!(first.len(), 300);
    for keep in [prompt, prompt + 150, prompt + 290] {
        session.truncate(keep);
        assert_eq!(greedy(&mut session, prompt + 300 - keep), first[keep - prompt..], "kept {keep}");
    }
    // The result equals the result of a session that never contained more tokens.
    let mut other = model.session().expect("a session");
    other.push_tokens(&session.tokens()[..prompt + 200]).expect("tokens");
    // With llama.cpp's kernels, the rounding depends on the batch size, so near ties of this model may be resolved
    // differently after some tokens.
    let compared = if has_exact_kernels() { 100 } else { 16 };
    assert_eq!(greedy(&mut other, compared), first[200..200 + compared]);
}

#[test]
fn a_prompt_with_a_window_is_cached_on_disk() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = made(folder.path(), Preset::SwaTiny);
    let path = path.to_str().expect("UTF-8");
    let cache = folder.path().join("cache");
    let run = |prompt: &str, more: &[&str]| {
        let arguments = [&["run", "-m", path, "-p", prompt, "-n", "16", "--greedy", "--json"], more].concat();
        let (code, stdout, stderr) = parts(&anneal(&arguments));
        assert_eq!(code, Some(0), "{stderr}");
        serde_json::from_str::<serde_json::Value>(&stdout).expect("JSON")
    };
    let caching = ["--prompt-cache", cache.to_str().expect("UTF-8")];
    // The prompt is longer than the window of 128 tokens.
    let prompt = "Once upon a time there was a word ".repeat(40);
    let alone = run(&prompt, &[]);
    let first = run(&prompt, &caching);
    assert_eq!((&first["tokens"], first["cached_tokens"].as_u64()), (&alone["tokens"], Some(0)), "{first}");
    // A later prompt begins with all of the first prompt, or with a part of it that ends far before its last window.
    for later in [format!("{prompt}and more"), "Once upon a time there was a word ".repeat(12)] {
        let (alone, cached) = (run(&later, &[]), run(&later, &caching));
        // With llama.cpp's kernels, the rounding depends on the batches.
        let compared = if has_exact_kernels() { 16 } else { 3 };
        let first =
            |answer: &serde_json::Value| answer["tokens"].as_array().expect("tokens")[..compared].to_vec();
        assert_eq!(first(&cached), first(&alone), "{cached}");
        assert!(cached["cached_tokens"].as_u64() > Some(50), "{cached}");
    }
}

#[test]
fn one_that_makes_embeddings_alone_makes_no_text() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = load(folder.path(), Preset::BertTiny);
    let error = model.session().expect_err("an embedding model has no sessions");
    assert!(matches!(error, Error::NotGenerative { .. }), "{error}");
    let mut embedder = model.embedder().expect("an embedder");
    let found = embedder.embed(&["a cat", "a ship", "a cat"]).expect("embeddings");
    let cosine = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    assert!(cosine(&found[0], &found[2]) > 0.9999 && cosine(&found[0], &found[1]) < 0.999);
    let path = made(folder.path(), Preset::BertTiny);
    let path = path.to_str().expect("UTF-8");
    for arguments in [
        &["run", "-m", path, "-p", "a", "-n", "2"][..],
        &["chat", "-m", path, "--chat-template", "chatml"],
        &["bench", "-m", path, "-p", "8", "-n", "4", "-r", "1"],
    ] {
        let (code, stdout, stderr) = parts(&anneal(arguments));
        assert_eq!(code, Some(1), "{arguments:?}: {stdout}{stderr}");
        assert!(stderr.contains("does not generate text"), "{arguments:?}: {stderr}");
    }
}
