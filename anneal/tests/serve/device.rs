//! Sampling on the device. The CPU is one to llama.cpp: what it chooses inside the graph is what is chosen from logits.

use serde_json::{Value, json};

use crate::client::{Server, greedy};
use crate::common::{anneal, on_tiny, parts, tiny};

#[test]
fn run_gives_the_same_tokens_and_counts_what_a_device_chose() {
    let tokens = |more: &[&str]| -> Value {
        let arguments = [&["--json", "--ignore-eos", "-p", "The smith brings", "-n", "40"], more].concat();
        serde_json::from_str(&on_tiny("run", &arguments)).expect("one JSON object")
    };
    let plain = tokens(&["--greedy"]);
    let device = tokens(&["--greedy", "--device-sampling"]);
    assert_eq!(device["tokens"], plain["tokens"]);
    assert_eq!((&device["chosen_on_device"], &plain["chosen_on_device"]), (&json!(40), &Value::Null));
    // With two contexts the first token comes from the one that reads prompts.
    let split = tokens(&["--greedy", "--device-sampling", "--split-layout", "on", "--split-from", "2"]);
    assert_eq!(split["tokens"], tokens(&["--greedy", "--split-layout", "on", "--split-from", "2"])["tokens"]);
    // What a device does not do: draw, and look at what changes logits.
    let others: [&[&str]; 3] =
        [&["--seed", "1"], &["--greedy", "--repeat-penalty", "1.1"], &["--greedy", "--logit-bias", "5-1"]];
    for more in others {
        let here = tokens(more);
        let asked = tokens(&[more, &["--device-sampling"]].concat());
        assert_eq!((&asked["tokens"], &asked["chosen_on_device"]), (&here["tokens"], &json!(0)), "{more:?}");
    }
}

#[test]
fn what_needs_logits_is_refused_beside_it() {
    let model = tiny().to_str().expect("a path in UTF-8");
    let cases: [(&[&str], &str); 4] = [
        (&["run", "-p", "x", "--speculative", "lookup"], "drafts"),
        (&["run", "-p", "x", "--prompt-cache", "c"], "--prompt-cache"),
        (&["chat", "--speculative", "lookup"], "drafts"),
        (&["serve", "--listen", "127.0.0.1:0", "--speculative", "asked"], "drafts"),
    ];
    for (arguments, expected) in cases {
        let (code, _, words) = parts(&anneal([arguments, &["--device-sampling", "-m", model]].concat()));
        assert_eq!(code, Some(2), "{arguments:?}: {words}");
        assert!(words.contains("logits") && words.contains(expected), "{arguments:?}: {words}");
    }
}

/// Slots change between requests that a device can choose for and others, also in one batch.
#[test]
fn a_server_gives_each_request_its_tokens() {
    let plain = Server::start(&["--slots", "1"]);
    let server = Server::start(&["--slots", "3", "--device-sampling"]);
    let requests: Vec<Value> = (0..12)
        .map(|number| {
            let mut request = greedy(&format!("text number {number}"), 24);
            match number % 4 {
                1 => request["logprobs"] = 2.into(),
                2 => (request["temperature"], request["seed"]) = (json!(0.9), number.into()),
                3 => request["repeat_penalty"] = json!(1.2),
                _ => {}
            }
            request
        })
        .collect();
    // One after the other, every token is that of a server without; the slots go from one kind to the other.
    let single = Server::start(&["--slots", "1", "--device-sampling"]);
    for request in &requests {
        let (expected, answer) = (plain.ask(request), single.ask(request));
        for what in ["tokens", "text", "logprobs"] {
            assert_eq!(answer[what], expected[what], "{request}");
        }
    }
    assert_eq!(single.metric("anneal_device_tokens_total"), 3.0 * 24.0);
    let answers: Vec<Value> = std::thread::scope(|scope| {
        let asked: Vec<_> = requests.iter().map(|request| scope.spawn(|| server.ask(request))).collect();
        asked.into_iter().map(|asked| asked.join().expect("an answer")).collect()
    });
    for (request, answer) in requests.iter().zip(&answers) {
        let expected = plain.ask(request);
        assert_eq!(answer["usage"]["completion_tokens"], 24, "{answer}");
        // Beside others rounding may be another: the first token is of the prompt alone, or nearly.
        assert_eq!(answer["tokens"][0], expected["tokens"][0], "{request}");
    }
    // A quarter of the requests, 24 tokens each, and no other.
    assert_eq!(server.metric("anneal_device_tokens_total"), 3.0 * 24.0);
    assert_eq!(plain.metric("anneal_device_tokens_total"), 0.0);
}
