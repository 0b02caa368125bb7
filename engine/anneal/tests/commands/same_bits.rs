//! Tests that the logits of a token do not depend on the batch, on its position in the batch, on threads, or on the
//! instruction set of the kernels.

use std::path::Path;

use gguf::synth::{self, Preset, SynthOptions};

use crate::common::{anneal, has_exact_kernels, parts, quantised};

/// Ways to evaluate the same tokens.
const WAYS: [&[&str]; 7] = [
    &["--step", "-t", "1"],
    &["-t", "2"],
    &["-t", "3", "--ubatch-size", "5"],
    &["-t", "1", "--batch-size", "17"],
    &["-t", "2", "--ubatch-size", "64", "--batch-size", "64"],
    &["--step", "-t", "2"],
    // By default, a CPU with AVX-512 VNNI uses kernels for it.
    &["-t", "2", "--kernels", "avx2"],
];

#[test]
fn logits_do_not_depend_on_batches_threads_and_instructions() {
    if !has_exact_kernels() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let mut models: Vec<_> = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q5_K_M", "Q4_K_M"].map(quantised).into();
    for preset in [Preset::MoeTiny, Preset::SwaTiny] {
        let path = folder.path().join(format!("{preset}.gguf"));
        synth::write(&path, &SynthOptions::new(preset)).expect("a model");
        models.push(path);
    }
    let text = folder.path().join("text");
    std::fs::write(&text, "The smith brings the steel to a bright red heat and hammers it. ".repeat(9))
        .expect("a text");
    for model in &models {
        check(model, &text, folder.path(), &[]);
    }
    for cache in ["q8_0", "q4_0", "bf16", "f32"] {
        check(&models[0], &text, folder.path(), &["--cache-type-k", cache, "--cache-type-v", cache]);
    }
}

#[track_caller]
fn check(model: &Path, text: &Path, folder: &Path, more: &[&str]) {
    let out = folder.join("logits");
    let logits = |way: &[&str]| {
        let files = [("-m", model), ("-f", text), ("--out", &out)];
        let files = files.map(|(flag, path)| [flag, path.to_str().expect("a path in UTF-8")]).concat();
        let arguments = [&["logits", "--ctx-size", "512"], &files[..], way, more].concat();
        let (code, _, stderr) = parts(&anneal(&arguments));
        assert_eq!(code, Some(0), "{stderr}");
        std::fs::read(&out).expect("the logits")
    };
    let expected = logits(&["-t", "1"]);
    for way in WAYS {
        assert!(logits(way) == expected, "{}: {way:?} {more:?} gives other logits", model.display());
    }
}
