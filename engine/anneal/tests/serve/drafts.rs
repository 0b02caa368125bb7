//! Tests of speculative decoding in the server: the tokens are the same as without drafts, and the counts are
//! correct.

use serde_json::{Value, json};

use crate::client::{Server, greedy};
use crate::common::on_tiny;

const REPEATS: &str = "a b c d a b c d a b c d a b c d a";

fn with(mut request: Value, drafts: Value) -> Value {
    request["speculative"] = drafts;
    request["cache_prompt"] = false.into();
    request
}

#[test]
fn tokens_are_those_of_run_without_drafts() {
    let server = Server::start(&["--slots", "1", "--speculative", "lookup"]);
    let mut lines = server.connect();
    let mut drafted = 0;
    for prompt in [REPEATS, "hello", "The smith brings the steel slowly to a red heat"] {
        let arguments = ["--json", "--ignore-eos", "--greedy", "-t", "1", "-p", prompt, "-n", "100"];
        let expected: Value = serde_json::from_str(&on_tiny("run", &arguments)).expect("one JSON object");
        let answer = lines.ask(&with(greedy(prompt, 100), Value::Null));
        assert_eq!(answer["tokens"], expected["tokens"], "{prompt}");
        assert_eq!(answer["text"], expected["text"], "{prompt}");
        drafted += answer["timings"]["drafted_tokens"].as_u64().expect("a number");
        // A request can turn drafts off.
        let plain = lines.ask(&with(greedy(prompt, 100), json!({ "drafts": "off" })));
        assert_eq!(plain["tokens"], expected["tokens"], "{prompt}");
        assert_eq!(plain["timings"]["drafted_tokens"], 0, "{plain}");
    }
    if drafted == 0 {
        assert!(!server.is_batch_invariant(), "nothing was drafted");
        // On CPUs where a batch is rounded differently from single tokens, nothing is drafted, and `run` reports
        // this.
        let arguments =
            ["--json", "--greedy", "-t", "1", "-p", REPEATS, "-n", "20", "--speculative", "lookup"];
        let told: Value = serde_json::from_str(&on_tiny("run", &arguments)).expect("one JSON object");
        let paused = told["speculative"]["paused"].as_str();
        assert!(paused.is_some_and(|why| why.contains("round differently")), "nothing was drafted: {told}");
    }
    assert_eq!(server.metric("anneal_drafted_tokens_total"), drafted as f64);
    assert!(server.metric("anneal_accepted_tokens_total") <= drafted as f64);
}

/// Starts a server with three slots in a context of `n_ctx` tokens and a draft model. The draft model is the model
/// itself, so that all drafts are correct.
fn drafting(n_ctx: &str) -> Server {
    let draft = crate::common::tiny().to_str().expect("a path");
    let flags = ["--slots", "3", "--draft-model", draft, "--draft-p-min", "0", "--draft-near", "-c", n_ctx];
    Server::start(&flags)
}

#[test]
fn a_smaller_model_drafts() {
    let server = drafting("1500");
    // One prompt takes more than one step to evaluate, while other requests run. This prompt is sent twice, so that the
    // slots contain other texts the second time.
    let long = "The smith brings the steel slowly to a red heat. ".repeat(14);
    let prompts = [REPEATS, "hello", long.as_str(), "A day in short", REPEATS, long.as_str()];
    let plain = |prompt: &str| server.ask(&with(greedy(prompt, 60), json!({ "drafts": "off" })));
    let expected: Vec<Value> = prompts.iter().map(|prompt| plain(prompt)["tokens"].clone()).collect();
    let ask = |prompt: &str| server.ask(&with(greedy(prompt, 60), Value::Null));
    let answers: Vec<Value> = std::thread::scope(|scope| {
        let asked: Vec<_> = prompts.iter().map(|prompt| scope.spawn(move || ask(prompt))).collect();
        asked.into_iter().map(|asked| asked.join().expect("an answer")).collect()
    });
    for ((prompt, answer), expected) in prompts.iter().zip(&answers).zip(&expected) {
        assert_eq!(answer["usage"]["completion_tokens"], 60, "{answer}");
        match server.is_batch_invariant() {
            true => assert_eq!(answer["tokens"], *expected, "{prompt}"),
            // Near ties may be resolved differently in a batch, but the first token is the same.
            false => assert_eq!(answer["tokens"][0], expected[0], "{prompt}"),
        }
    }
    let drafted = server.metric("anneal_drafted_tokens_total");
    let accepted = server.metric("anneal_accepted_tokens_total");
    assert!(drafted > 0.0 && accepted > 0.5 * drafted, "{accepted} of {drafted}");
    // A single request at a time, by default and with drafts from the text itself.
    let alone = ask(REPEATS);
    assert_eq!(alone["usage"]["completion_tokens"], 60, "{alone}");
    let lookup = server.ask(&with(greedy(REPEATS, 60), json!({ "drafts": "lookup" })));
    assert_eq!(lookup["usage"]["completion_tokens"], 60, "{lookup}");
}

/// If a batch gives exactly the same logits as single tokens, all tokens equal the tokens without drafts. A model that
/// is rarely confident drafts few tokens.
#[test]
fn tokens_are_the_same_with_a_smaller_model() {
    let model = crate::common::tiny();
    let draft = model.to_str().expect("a path");
    for p in ["0", "0.02"] {
        let cache = ["-ctk", "bf16", "-ctv", "bf16"];
        let flags = ["--slots", "1", "--draft-model", draft, "--draft-p-min", p];
        let server = Server::start(&[&flags[..], &cache].concat());
        for prompt in [REPEATS, "hello", REPEATS, "The smith brings the steel slowly to a red heat"] {
            let plain = server.ask(&with(greedy(prompt, 100), json!({ "drafts": "off" })));
            let answer = server.ask(&with(greedy(prompt, 100), Value::Null));
            assert_eq!(answer["tokens"], plain["tokens"], "{prompt}, {p}");
        }
        let (drafted, accepted) =
            (server.metric("anneal_drafted_tokens_total"), server.metric("anneal_accepted_tokens_total"));
        // With the same model as draft model, every draft is accepted. On CPUs where a batch is rounded differently,
        // nothing is drafted.
        assert_eq!(accepted, drafted, "{p}");
    }
}

/// The conversations do not fit into the context together, so slots are cleared and reused, also in the draft model's
/// context.
#[test]
fn drafts_outlive_a_context_that_is_full() {
    let server = drafting("512");
    let mut drafted = 0.0;
    for round in 0..4 {
        std::thread::scope(|scope| {
            for slot in 0..3 {
                let server = &server;
                scope.spawn(move || {
                    let prompt = format!("{round} {slot} {}", "The smith brings the steel. ".repeat(12));
                    let answer = server.ask(&with(greedy(&prompt, 40), Value::Null));
                    assert_eq!(answer["usage"]["completion_tokens"], 40, "{answer}");
                });
            }
        });
        let alone = server.ask(&with(greedy("Once more", 60), Value::Null));
        assert_eq!(alone["usage"]["completion_tokens"], 60, "{alone}");
        let now = server.metric("anneal_drafted_tokens_total");
        assert!(
            now > drafted || server.metric("anneal_drafts_turned_off_total") > 0.0,
            "round {round}: {now}"
        );
        drafted = now;
    }
}

#[test]
fn what_cannot_draft_is_refused_at_the_start() {
    for (flags, expected) in [
        (&["--speculative", "model"][..], "needs a draft model\nhint: set draft_model"),
        (&["--speculative", "lookup", "--draft-model", "x.gguf"], "has no effect with speculative"),
        (&["--draft-max", "3"], "--draft-max has no effect without drafts"),
        (&["--draft-model", "no such.gguf"], "no such.gguf"),
        (&["--draft-model", "x.gguf", "--draft-p-min", "2"], "for '--draft-p-min <P>': use 0 to 1"),
    ] {
        let model = crate::common::tiny();
        let serve = ["serve", "-m", model.to_str().expect("a path"), "--listen", "127.0.0.1:0"];
        let (code, _, words) = crate::common::parts(&crate::common::anneal([&serve[..], flags].concat()));
        assert!(code.is_some_and(|code| code > 0) && words.contains(expected), "{flags:?}: {code:?} {words}");
    }
}

#[test]
fn drawn_tokens_and_schemas_are_the_same_too() {
    let server = Server::start(&["--slots", "1", "--speculative", "asked"]);
    let mut lines = server.connect();
    let schema =
        json!({ "type": "array", "items": { "enum": ["red", "green"] }, "minItems": 8, "maxItems": 9 });
    let drawn = json!({
        "prompt": REPEATS, "max_tokens": 80, "temperature": 1.2, "top_k": 0, "seed": 7, "ignore_eos": true,
    });
    let mut penalised = drawn.clone();
    penalised["repeat_penalty"] = 1.2.into();
    let mut ruled = greedy(REPEATS, 200);
    ruled["json_schema"] = schema;
    for request in [drawn, penalised, ruled] {
        let plain = lines.ask(&with(request.clone(), Value::Null));
        assert_eq!(plain["timings"]["drafted_tokens"], 0, "the request did not ask for drafts: {plain}");
        let drafted = lines.ask(&with(request, json!({ "drafts": "lookup", "max": 3 })));
        assert_eq!(drafted["tokens"], plain["tokens"]);
        assert_eq!(drafted["stop"], plain["stop"]);
    }
}

#[test]
fn several_slots_share_a_batch() {
    let server = Server::start(&["--slots", "3", "--speculative", "lookup", "--draft-near", "-c", "1024"]);
    let ask = |at: u32| {
        let mut lines = server.connect();
        for _ in 0..3 {
            let n = 60 + 10 * at;
            let answer = lines.ask(&greedy(REPEATS, n));
            assert_eq!(answer["usage"]["completion_tokens"], n, "{answer}");
            assert_eq!(answer["tokens"].as_array().map(Vec::len), Some(n as usize), "{answer}");
        }
    };
    let ask = &ask;
    std::thread::scope(|scope| {
        for at in 0..5 {
            scope.spawn(move || ask(at));
        }
    });
}

#[test]
fn a_full_context_ends_where_it_would() {
    let server = Server::start(&["-c", "256", "--slots", "1", "--speculative", "lookup"]);
    let full = server.ask(&greedy(REPEATS, 1000));
    assert_eq!(full["stop"], "context_full", "{full}");
    let usage = |name: &str| full["usage"][name].as_u64().expect("a number");
    assert_eq!(usage("prompt_tokens") + usage("completion_tokens"), 257);
}

#[test]
fn a_server_without_drafts_says_so() {
    let server = Server::start(&[]);
    let answer = server.ask(&with(greedy("hello", 4), json!({ "drafts": "lookup" })));
    let message = answer["error"]["message"].as_str().expect("an error");
    assert!(message.contains("speculative decoding is off for this model"), "{message}");
    let answer = server.ask(&with(greedy("hello", 4), json!({ "drafts": "off" })));
    assert_eq!(answer["usage"]["completion_tokens"], 4, "{answer}");
}
