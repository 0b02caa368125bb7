//! Tests of sampling on the device. llama.cpp treats the CPU as a device. The token chosen in the graph must equal
//! the token chosen from logits.

use serde_json::{Value, json};

use crate::client::{Server, greedy};
use crate::common::{anneal, command, on_tiny, parts, tiny};

#[test]
fn run_gives_the_same_tokens_and_tells_what_a_device_did() {
    let tokens = |more: &[&str]| -> Value {
        let arguments = [&["--json", "--ignore-eos", "-p", "The smith brings", "-n", "40"], more].concat();
        serde_json::from_str(&on_tiny("run", &arguments)).expect("one JSON object")
    };
    let cuts = ["top_k", "top_p", "min_p", "temperature", "draw"];
    let cases: [(&[&str], &[&str], &[&str]); 11] = [
        (&["--greedy"], &["greedy"], &[]),
        (&["--greedy", "--repeat-penalty", "1.3"], &["penalties", "greedy"], &[]),
        (&["--greedy", "--logit-bias", "5-1"], &["logit_bias", "greedy"], &[]),
        (&["--seed", "1"], &cuts, &[]),
        (&["--seed", "1", "--top-p", "1", "--min-p", "0"], &["top_k", "temperature", "draw"], &[]),
        (&["--seed", "1", "--top-k", "0", "--top-p", "1", "--min-p", "0"], &["temperature", "draw"], &[]),
        (
            &["--seed", "1", "--logit-bias", "5-inf", "--logit-bias", "7+1", "--presence-penalty", "0.5"],
            &["logit_bias", "penalties", "top_k", "top_p", "min_p", "temperature", "draw"],
            &[],
        ),
        // A sampler that devices do not support ends the part of the chain that runs on the device.
        (
            &["--seed", "1", "--typical", "0.9", "--repeat-penalty", "1.2"],
            &["penalties", "top_k"],
            &["typical", "top_p", "min_p", "temperature", "draw"],
        ),
        (
            &["--seed", "2", "--xtc-probability", "0.5"],
            &["top_k", "top_p", "min_p"],
            &["xtc", "temperature", "draw"],
        ),
        (&["--seed", "2", "--mirostat", "2"], &["temperature"], &["mirostat"]),
        (
            &["--seed", "2", "--grammar", "root ::= [a-z ]+"],
            &[],
            &["grammar", "top_k", "top_p", "min_p", "temperature", "draw"],
        ),
    ];
    for (more, offloaded, on_host) in cases {
        let here = tokens(&[more, &["--device-sampling", "off"]].concat());
        let device = tokens(&[more, &["--device-sampling", "on"]].concat());
        // The random numbers are the same and are used in the same order, so only rounding could cause a difference.
        assert_eq!(device["tokens"], here["tokens"], "{more:?}");
        let made = device["tokens"].as_array().expect("tokens").len();
        let report = &device["device_sampling"];
        assert_eq!(
            (&report["offloaded"], &report["on_host"]),
            (&json!(offloaded), &json!(on_host)),
            "{more:?}"
        );
        let (chosen, left) = if on_host.is_empty() { (made, 0) } else { (0, made) };
        let counts = (&report["tokens_on_device"], &report["tokens_on_host"]);
        // A grammar may allow one more token, the end of text.
        if offloaded.is_empty() {
            assert_eq!(counts.0, &json!(0), "{more:?}");
        } else {
            assert_eq!(counts, (&json!(chosen), &json!(left)), "{more:?}");
        }
        let why = report["why"].as_str();
        assert_eq!(
            why.is_some_and(|why| why.starts_with(on_host[0])),
            !on_host.is_empty(),
            "{more:?}: {why:?}"
        );
        let why = &here["device_sampling"]["why"];
        assert_eq!(why, "--device-sampling off", "{more:?}");
    }
    // The CPU computes the logits here, unless another setting was requested.
    let auto = tokens(&["--greedy"]);
    assert_eq!(auto["device_sampling"]["why"], "the CPU computes the logits");
    assert_eq!(auto["device_sampling"]["tokens_on_host"], 40);
}

/// Covers batches of a long prompt, the penalties for its tokens, and the text after the prompt.
#[test]
fn penalties_on_a_device_look_at_the_prompt() {
    let prompt = "the smith brings the iron and the smith brings the coal ".repeat(8);
    let run = |mode| -> Value {
        let arguments =
            ["--json", "--ignore-eos", "-p", &prompt, "-n", "48", "--greedy", "--repeat-penalty", "1.5"];
        let more =
            ["--frequency-penalty", "0.3", "--repeat-last-n", "32", "-ub", "16", "--device-sampling", mode];
        serde_json::from_str(&on_tiny("run", &[&arguments[..], &more].concat())).expect("one JSON object")
    };
    let (here, device) = (run("off"), run("on"));
    assert_eq!(device["tokens"], here["tokens"]);
    assert_eq!(device["device_sampling"]["tokens_on_device"], 48);
}

/// The number of reused graphs comes from llama.cpp, not from a flag.
#[test]
fn steady_decode_reuses_its_graph() {
    let run = |more: &[&str], reuse: bool| -> (u64, u64) {
        let arguments =
            ["run", "--json", "--ignore-eos", "--greedy", "-p", "The smith brings", "-n", "200", "-m"];
        let mut command = command();
        if !reuse {
            command.env("LLAMA_GRAPH_REUSE_DISABLE", "1");
        }
        let output = command.args(arguments).arg(tiny()).args(more).output().expect("the executable runs");
        let (code, stdout, stderr) = parts(&output);
        assert_eq!(code, Some(0), "{stderr}");
        let result: Value = serde_json::from_str(&stdout).expect("one JSON object");
        let count = |name: &str| result["graphs"][name].as_u64().expect("a number");
        (count("computed"), count("reused"))
    };
    for more in [&["--device-sampling", "off"][..], &["--device-sampling", "on", "--repeat-penalty", "1.2"]] {
        let (computed, reused) = run(more, true);
        // The first token comes from the prompt's graph.
        assert_eq!(computed, 199, "{more:?}");
        assert!(reused * 10 >= computed * 9, "{more:?}: {reused} of {computed}");
    }
    assert_eq!(run(&[], false), (199, 0));
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

/// Slots alternate between requests whose tokens a device can choose and other requests, even within one batch.
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
    // If the requests run in sequence, every token equals the token from a server without device sampling. The slot
    // alternates between both kinds of requests.
    let single = Server::start(&["--slots", "1", "--device-sampling"]);
    for request in &requests {
        let (expected, answer) = (plain.ask(request), single.ask(request));
        for what in ["tokens", "text", "logprobs"] {
            assert_eq!(answer[what], expected[what], "{request}");
        }
        let report = &answer["usage"]["device_sampling"];
        let chosen = if request["logprobs"].is_null() { 24 } else { 0 };
        assert_eq!(
            (&report["tokens_on_device"], &expected["usage"]["device_sampling"]),
            (&json!(chosen), &Value::Null)
        );
    }
    assert_eq!(single.metric("anneal_device_tokens_total"), 9.0 * 24.0);
    let answers: Vec<Value> = std::thread::scope(|scope| {
        let asked: Vec<_> = requests.iter().map(|request| scope.spawn(|| server.ask(request))).collect();
        asked.into_iter().map(|asked| asked.join().expect("an answer")).collect()
    });
    for (request, answer) in requests.iter().zip(&answers) {
        let expected = plain.ask(request);
        assert_eq!(answer["usage"]["completion_tokens"], 24, "{answer}");
        // If other requests run at the same time, rounding may differ. The first token depends almost only on the
        // prompt.
        assert_eq!(answer["tokens"][0], expected["tokens"][0], "{request}");
    }
    // Counts all requests except those with log-probabilities, with 24 tokens each.
    assert_eq!(server.metric("anneal_device_tokens_total"), 9.0 * 24.0);
    assert_eq!(plain.metric("anneal_device_tokens_total"), 0.0);
}
