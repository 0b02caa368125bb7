//! Tests of thread counts that a request selects with a workload.

use serde_json::json;

use crate::client::{Server, command, configured, greedy};
use crate::common::{self, anneal, parts, tiny};

#[test]
fn a_request_names_its_workload_over_both_interfaces() {
    let server = configured(
        "model = \"a.gguf\"\n[workloads.coding]\ndecode_threads = 2\nprefill_threads = 2\n[workloads.mail]\ndecode_threads = 1\n",
        &["a.gguf"],
    );
    let expected = server.ask(&greedy("hello", 6))["text"].clone();
    for name in ["coding", "mail", "coding"] {
        let mut request = greedy("hello", 6);
        request["workload"] = name.into();
        assert_eq!(server.ask(&request)["text"], expected, "{name}");
        let (status, answer) = server.post("/v1/completions", &request);
        assert_eq!((status, &answer["choices"][0]["text"]), (200, &expected), "{name}: {answer}");
    }
    let mut request = greedy("hello", 1);
    request["workload"] = "codin".into();
    let refused = server.ask(&request);
    assert_eq!(refused["error"]["param"], "workload");
    assert!(refused["error"]["message"].to_string().contains("did you mean"), "{refused}");
}

#[test]
fn the_environment_names_them_too() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut command = command(&[]);
    command.arg("--socket").arg(folder.path().join("a.sock"));
    command.env("ANNEAL_WORKLOADS_NIGHT_SHIFT_DECODE_THREADS", "1");
    let server = Server::with(command, folder);
    let mut request = greedy("hello", 2);
    request["workload"] = "night_shift".into();
    assert_eq!(server.ask(&request)["usage"]["completion_tokens"], 2);
    request["workload"] = json!("day");
    assert_eq!(server.ask(&request)["error"]["param"], "workload");
}

#[test]
fn a_variable_that_cannot_be_meant_is_wrong_usage() {
    for (name, value, expected) in [
        ("ANNEAL_WORKLOADS_A_DECODE_THREADS", "many", "ANNEAL_WORKLOADS_A_DECODE_THREADS=many: use"),
        ("ANNEAL_THREADS", "some", "ANNEAL_THREADS=some is not a number of threads\nhint: use"),
    ] {
        let mut command = common::command();
        command.args(["serve", "--listen", "127.0.0.1:0", "-m"]).arg(tiny()).env(name, value);
        let (code, _, stderr) = parts(&command.output().expect("it runs"));
        assert!(code == Some(2) && stderr.contains(expected), "{code:?}: {stderr}");
    }
    let (code, _, _) = parts(&anneal(["serve", "--print-config"]));
    assert_eq!(code, Some(0));
}
