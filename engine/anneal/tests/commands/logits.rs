//! Tests of `anneal logits`: the file, both evaluation modes, and bad input.

use std::path::Path;

use crate::common::{anneal, parts, tiny};
use build_info::Logits;
use gguf::probe::Probe;

/// Creates a probe, its tokens and a path for the logits.
fn files(folder: &Path, tokens: &str) -> [String; 3] {
    let [model, list, out] = ["probe.gguf", "tokens", "logits"].map(|name| folder.join(name));
    Probe::Llama.write(&model).expect("a probe");
    std::fs::write(&list, tokens).expect("a file");
    [model, list, out].map(|path| path.to_str().expect("a path in UTF-8").to_string())
}

#[test]
fn prefill_and_decode_agree_and_greedy_tokens_follow() {
    let folder = tempfile::tempdir().expect("a folder");
    let tokens: Vec<String> = Probe::Llama.tokens(21).iter().map(u32::to_string).collect();
    let [model, list, out] = files(folder.path(), &tokens.join(" "));
    let logits = |more: &[&str]| {
        let mut all = vec!["logits", "-m", &model, "--tokens", &list, "--out", &out];
        all.extend(more);
        let (code, stdout, stderr) = parts(&anneal(&all));
        assert_eq!((code, stdout.as_str()), (Some(0), ""), "{stderr}");
        Logits::parse(&std::fs::read(&out).expect("the file")).expect("logits")
    };
    let (prefill, decode) = (logits(&[]), logits(&["--step", "--greedy", "3"]));
    assert_eq!((prefill.rows().len(), decode.rows().len()), (21, 24));
    assert_eq!(prefill.tokens, decode.tokens[..21]);
    for (one, other) in prefill.rows().zip(decode.rows()) {
        let far = one.iter().zip(other).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(far < 0.5, "{far}");
    }
    let row = decode.rows().nth(20).expect("a row");
    let best = (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b]));
    assert_eq!(best, Some(decode.tokens[21] as usize));
    assert_eq!(logits(&[]).to_bytes(), prefill.to_bytes(), "the second run differs");
}

#[test]
fn a_text_is_tokenised() {
    let folder = tempfile::tempdir().expect("a folder");
    let [_, list, out] = files(folder.path(), "the quick brown fox");
    let model = tiny().to_str().expect("a path in UTF-8");
    let (code, _, stderr) = parts(&anneal(["logits", "-m", model, "-f", &list, "--out", &out]));
    assert_eq!(code, Some(0), "{stderr}");
    let logits = Logits::parse(&std::fs::read(&out).expect("the file")).expect("logits");
    assert!(logits.vocabulary() == 2048 && logits.rows().len() > 3);
}

#[test]
fn bad_input_is_named_and_nothing_is_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let cases = [
        ("", 1, "the prompt is empty"),
        ("1 x", 2, "\"x\" is not a token number"),
        ("1 127", 2, "token 127 is not in the vocabulary of 127 tokens"),
        ("-1", 2, "token -1 is not in the vocabulary"),
    ];
    for (tokens, expected, message) in cases {
        let [model, list, out] = files(folder.path(), tokens);
        let (code, _, stderr) = parts(&anneal(["logits", "-m", &model, "--tokens", &list, "--out", &out]));
        assert_eq!(code, Some(expected), "{stderr}");
        assert!(stderr.contains(message), "{stderr}");
        assert!(!Path::new(&out).exists());
    }
    let [model, list, out] = files(folder.path(), &"1 ".repeat(300));
    let all = ["logits", "-m", &model, "--tokens", &list, "--out", &out, "-c", "256"];
    let (code, _, stderr) = parts(&anneal(all));
    assert!(code == Some(1) && stderr.contains("300 tokens, but the context holds only 256"), "{stderr}");
    let nowhere = folder.path().join("no/logits");
    let nowhere = nowhere.to_str().expect("a path in UTF-8");
    let (code, _, stderr) = parts(&anneal(["logits", "-m", &model, "--tokens", &list, "--out", nowhere]));
    assert!(code == Some(1) && stderr.contains("does not exist\nhint: create it first"), "{stderr}");
}
