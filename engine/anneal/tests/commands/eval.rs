//! Tests of `anneal eval`: properties that hold for any model and its quantisations, and bad input.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::{anneal, parts, tiny};
use serde_json::Value;

fn text(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

/// Quantises the tiny model.
fn quantised(folder: &Path, kind: &str) -> PathBuf {
    let path = folder.join(format!("{kind}.gguf"));
    let (code, _, stderr) = parts(&anneal(["quantize", "-q", text(tiny()), text(&path), kind]));
    assert_eq!(code, Some(0), "{stderr}");
    path
}

fn eval(model: &Path, more: &[&str]) -> Value {
    let mut all = vec!["eval", text(model), "-o", "json", "--chunks", "2"];
    all.extend(more);
    let (code, stdout, stderr) = parts(&anneal(&all));
    assert_eq!(code, Some(0), "{all:?}: {stderr}");
    serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}"))
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is not a number"))
}

#[test]
fn a_model_is_at_no_distance_from_itself() {
    // Rounding in the temporary file causes a distance of about 1e-8.
    for (more, most) in [(&[][..], 0.0), (&["--one-at-a-time"], 1e-6)] {
        let mut all = vec!["--against", text(tiny())];
        all.extend(more);
        let found = eval(tiny(), &all);
        let against = &found["against"];
        assert!(number(&against["max_kld"]) <= 20.0 * most, "{found}");
        assert!((0.0..=most).contains(&number(&against["mean_kld"]["value"])), "{found}");
        assert_eq!(against["top1"]["value"], 1.0, "{found}");
        assert_eq!(against["perplexity_ratio"]["value"], 1.0, "{found}");
        assert_eq!(against["reference_perplexity"], found["perplexity"]);
        assert_eq!(found["positions"], 2 * 255);
        assert_eq!((&found["interrupted"], &found["text"]), (&Value::Bool(false), &Value::from("built-in")));
    }
}

#[test]
fn fewer_bits_are_farther_away() {
    let folder = tempfile::tempdir().expect("a folder");
    let kld = |kind, more: &[&str]| {
        let mut all = vec!["--against", text(tiny())];
        all.extend(more);
        number(&eval(&quantised(folder.path(), kind), &all)["against"]["mean_kld"]["value"])
    };
    let (q8, q2) = (kld("Q8_0", &[]), kld("Q2_K", &[]));
    assert!(q8 > 0.0 && q8 < 0.02, "Q8_0: {q8}");
    assert!(q2 > 20.0 * q8, "Q8_0: {q8}, Q2_K: {q2}");
    let apart = kld("Q2_K", &["--one-at-a-time"]);
    assert!((apart / q2 - 1.0).abs() < 1e-3, "{q2} together, {apart} one after the other");
}

#[test]
fn perplexity_is_the_same_alone_and_beside_a_reference() {
    let folder = tempfile::tempdir().expect("a folder");
    let q8 = quantised(folder.path(), "Q8_0");
    let alone = eval(&q8, &[]);
    assert_eq!(alone["perplexity"], eval(&q8, &["--against", text(tiny())])["perplexity"]);
    assert!(alone.get("against").is_none());
    assert!(number(&alone["perplexity"]["error"]) > 0.0);
    let (code, stdout, _) = parts(&anneal(["eval", text(&q8), "--chunks", "1", "-q"]));
    assert!(code == Some(0) && stdout.contains("| perplexity") && stdout.contains(" ± "), "{stdout}");
}

#[test]
fn a_model_or_a_reference_that_makes_no_numbers_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let nan = crate::common::nan(folder.path());
    let cases: [&[&str]; 4] = [
        &[text(&nan)],
        &[text(tiny()), "--against", text(&nan)],
        &[text(tiny()), "--against", text(&nan), "--one-at-a-time"],
        &[text(&nan), "--against", text(tiny())],
    ];
    for case in cases {
        let (code, _, stderr) = parts(&anneal([&["eval", "-q", "--chunks", "1"], case].concat()));
        assert_eq!(code, Some(1), "{case:?}: {stderr}");
        assert!(stderr.contains("nan.gguf: its probabilities are not numbers"), "{case:?}: {stderr}");
    }
}

#[test]
fn bad_input_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).expect("a file");
        path
    };
    let (short, latin) = (file("short.txt", b"a few words"), file("latin.txt", b"caf\xe9"));
    let probe = folder.path().join("probe.gguf");
    gguf::probe::Probe::Llama.write(&probe).expect("a probe");
    let missing = folder.path().join("missing");
    let cases: [(&[&str], i32, &str); 9] = [
        (&["-f", text(&short)], 1, "but a chunk needs 512\nhint: pass a longer text"),
        (&["-f", text(&latin)], 1, "byte 3 is invalid"),
        (&["-f", text(&missing)], 1, "cannot read the text"),
        (&["-f", text(folder.path())], 1, "cannot read the text"),
        (&["--against", text(&probe)], 1, "have different vocabularies"),
        (&["--against", text(&probe), "--one-at-a-time"], 1, ""),
        (&["--against", text(&missing)], 1, "no such file"),
        (&["--ctx", "8"], 2, "16 to 268435456 tokens"),
        (&["--chunks", "0"], 2, "use at least 1"),
    ];
    for (more, expected, words) in cases {
        let mut all = vec!["eval", text(tiny())];
        all.extend(more);
        let (code, stdout, stderr) = parts(&anneal(&all));
        assert_eq!((code, stdout.as_str()), (Some(expected), ""), "{all:?}: {stderr}");
        assert!(stderr.contains(words) && stderr.contains("error: "), "{all:?}: {stderr}");
        if words == "cannot read the text" {
            assert!(stderr.contains("\nhint: check the path"), "{all:?}: {stderr}");
        }
    }
}

#[test]
fn ctrl_c_prints_what_there_is() {
    let mut child = crate::common::command()
        .args(["eval", text(tiny()), "-o", "json", "-c", "32"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the executable runs");
    let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
    // At this point, a quarter of the work is done.
    let line = lines.next().expect("a line").expect("text");
    assert!(line.starts_with("evaluate "), "{line}");
    let signalled = Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("kill");
    assert!(signalled.success());
    let rest: Vec<String> = lines.map_while(Result::ok).collect();
    let (code, stdout, _) = parts(&child.wait_with_output().expect("it ends"));
    assert_eq!(code, Some(130), "{rest:?}");
    let found: Value = serde_json::from_str(&stdout).expect("JSON");
    assert_eq!(found["interrupted"], true);
    assert!(number(&found["chunks"]) > 0.0 && number(&found["chunks"]) < number(&found["chunks_planned"]));
    assert!(rest.iter().any(|line| line.starts_with("interrupted: ")), "{rest:?}");
}
