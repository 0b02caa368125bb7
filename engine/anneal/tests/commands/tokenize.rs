//! Tests of `anneal tokenize`.

use serde_json::{Value, json};

use crate::common::{anneal, parts, tiny};

#[test]
fn a_text_becomes_tokens_and_comes_back() {
    let model = tiny().to_str().expect("UTF-8").to_string();
    let run = |more: &[&str]| parts(&anneal([&["tokenize", "-m", &model], more].concat()));
    let text = "Größe, 模型 and\ttabs";
    let (code, out, stderr) = run(&["-p", text, "--json"]);
    assert_eq!(code, Some(0), "{stderr}");
    let list: Value = serde_json::from_str(&out).expect("JSON");
    let list = list["tokens"].as_array().expect("a list");
    let numbers: Vec<String> = list.iter().map(|token| token["token"].to_string()).collect();
    assert!(numbers.len() > 3, "{out}");
    let (code, out, stderr) = run(&["--tokens", &numbers.join(", "), "--json"]);
    assert_eq!((code, serde_json::from_str(&out).ok()), (Some(0), Some(json!({ "text": text }))), "{stderr}");

    let (code, out, stderr) = run(&["-p", text]);
    assert_eq!(code, Some(0), "{stderr}");
    assert_eq!(out.lines().count(), numbers.len());
    assert!(stderr.contains(&format!("{} tokens", numbers.len())), "{stderr}");
    // A control character in the text does not reach the terminal.
    assert!(out.contains("\\t") && !out.contains('\t'), "{out}");
}

#[test]
fn mistakes_are_named() {
    let model = tiny().to_str().expect("UTF-8").to_string();
    for (more, expected, message) in [
        (&["--tokens", "1,x"][..], 2, "\"x\" is not a token number"),
        (&["--tokens", "-1"], 2, "the model has no token -1"),
        (&["--tokens", "99999999"], 2, "the model has no token 99999999\nhint: use 0 to "),
        (&[], 2, "--prompt <TEXT>|--file <FILE>|--tokens <NUMBERS>"),
        (&["-p", "a", "--tokens", "1"], 2, "cannot be used with"),
        (&["-f", "missing.txt"], 1, "cannot read the prompt missing.txt"),
    ] {
        let (code, _, stderr) = parts(&anneal([&["tokenize", "-m", &model], more].concat()));
        assert!(code == Some(expected) && stderr.contains(message), "{more:?}: {code:?}: {stderr}");
    }
}
