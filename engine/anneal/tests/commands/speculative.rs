//! Tests of the command-line options for speculative decoding.

use crate::common::{anneal, on_tiny, parts, tiny};
use serde_json::Value;

fn run(more: &[&str]) -> Value {
    let all =
        [&["--json", "--ignore-eos", "--greedy", "-t", "1", "-p", "a b c d a b c d a b", "-n", "100"], more];
    serde_json::from_str(&on_tiny("run", &all.concat())).expect("one JSON object")
}

#[test]
fn run_says_what_drafts_brought() {
    let plain = run(&[]);
    assert_eq!(plain["speculative"], Value::Null);
    let model = tiny().to_str().expect("a path in UTF-8");
    for flags in [&["--speculative", "lookup"][..], &["--draft-model", model, "--draft-p-min", "0"]] {
        let drafted = run(flags);
        assert_eq!(drafted["tokens"], plain["tokens"], "{flags:?}");
        assert_eq!(drafted["text"], plain["text"], "{flags:?}");
        let report = &drafted["speculative"];
        assert!(report["tokens_per_second_without"].as_f64() > Some(0.0), "{report}");
        assert!(report["gain"].as_f64() > Some(0.0), "{report}");
        assert!(report["drafted_tokens"].as_u64() >= report["accepted_tokens"].as_u64(), "{report}");
    }
    let all = ["run", "-m", model, "-p", "a b a b a", "-n", "40", "-t", "1", "--speculative", "lookup"];
    let (code, _, stderr) = parts(&anneal(all));
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stderr.contains("\nspeculative: "), "{stderr}");
}

#[test]
fn what_cannot_be_meant_is_refused_in_words() {
    let model = tiny().to_str().expect("a path in UTF-8");
    let cases: [(&[&str], &str); 7] = [
        (&["run", "--speculative", "both"], "unknown speculative mode"),
        (&["run", "--speculative", "model"], "--draft-model FILE"),
        (&["run", "--draft-near"], "--draft-near has no effect without drafts"),
        (&["run", "--speculative", "lookup", "--draft-max", "16"], "use 1 to 15"),
        (
            &["run", "-t", "1", "--draft-model", model, "--draft-threads", "2"],
            "--draft-threads 2: use 1 to 1",
        ),
        (&["bench", "--speculative", "lookup"], "this command does not measure speculative decoding"),
        (&["bench", "--draft-model", model], "this command does not measure speculative decoding"),
    ];
    for (arguments, expected) in cases {
        let all = [arguments, &["-m", model]].concat();
        let (code, stdout, stderr) = parts(&anneal(&all));
        assert_eq!((code, stdout.as_str()), (Some(2), ""), "{all:?}: {stderr}");
        assert!(stderr.contains(expected), "{all:?}: {stderr}");
    }
    let (code, _, stderr) = parts(&anneal(["run", "-m", model, "-p", "x", "--draft-model", "/no/such.gguf"]));
    assert_eq!(code, Some(1), "{stderr}");
}
