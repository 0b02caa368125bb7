//! Tests of several models with names. Models are loaded on request, and evicted when another model needs the memory.

use std::time::Duration;

use serde_json::{Value, json};

use crate::client::{PATIENCE, Server, configured, greedy};
use crate::common::tiny;

/// Configuration with three models, none of which is loaded at the start.
const THREE: &str = "slots = 2\nctx_size = 512\n[models.a]\npath = \"a.gguf\"\n[models.b]\npath = \"b.gguf\"\n\
                     [models.c]\npath = \"c.gguf\"\nslots = 3\nmax_tokens = 2\n";
const FILES: [&str; 3] = ["a.gguf", "b.gguf", "c.gguf"];

/// Returns the estimated memory of a model with a context of 512 tokens. The estimate consists of the file's weights,
/// and of K and V in half precision for 2 heads of 64 values in 4 layers.
fn one() -> u64 {
    let file = gguf::GgufFile::open(tiny()).expect("a model");
    file.weights().expect("weights").0 + 512 * 4 * 2 * 2 * 64 * 2
}

fn of(model: &str, max_tokens: u32) -> Value {
    let mut request = greedy("hello", max_tokens);
    request["model"] = model.into();
    request
}

fn states(server: &Server) -> Vec<(String, String)> {
    let (status, list) = server.get("/v1/models");
    assert_eq!(status, 200, "{list}");
    let text = |value: &Value| value.as_str().expect("a text").to_string();
    let data = list["data"].as_array().expect("a list");
    data.iter().map(|model| (text(&model["id"]), text(&model["state"]))).collect()
}

fn state(server: &Server, name: &str) -> String {
    states(server).into_iter().find(|(id, _)| id == name).expect("the model").1
}

fn wait_for_state(server: &Server, name: &str, expected: &str) {
    let begin = std::time::Instant::now();
    while state(server, name) != expected {
        assert!(begin.elapsed() < PATIENCE, "{name} is {} and not {expected}", state(server, name));
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Returns the state and the number of slots of the model `name` in `/status`.
fn shown(seen: &Value, name: &str) -> (String, usize) {
    let mut models = seen["models"].as_array().expect("a list").iter();
    let model = models.find(|model| model["id"] == name).expect("the model");
    (model["state"].as_str().expect("a text").to_string(), model["slots"].as_array().map_or(0, Vec::len))
}

/// Returns the value of a metric of one model.
fn metric(server: &Server, name: &str, model: &str) -> f64 {
    server.metric(&format!("{name}{{model=\"{model}\"}}"))
}

#[test]
fn each_is_loaded_when_it_is_asked_for_and_answers_as_its_own() {
    let server = configured(THREE, &FILES);
    assert!(states(&server).iter().all(|(_, state)| state == "unloaded"), "{:?}", states(&server));
    assert_eq!(
        (&server.ready["context"], server.ready["models"].as_array().map(Vec::len)),
        (&Value::Null, Some(3))
    );

    let refused = server.ask(&greedy("hello", 2));
    let message = refused["error"]["message"].as_str().expect("an error");
    assert!(message.starts_with("model: is missing: this server has \"a\", \"b\", \"c\""), "{message}");
    let refused = server.ask(&of("model-a", 2));
    assert_eq!(refused["error"]["code"], "model_not_found", "{refused}");
    let (status, refused) = server.post("/v1/completions", &of("bb", 2));
    assert!(status == 404 && refused["error"]["message"].to_string().contains("did you mean"), "{refused}");

    let answer = server.ask(&of("a", 3));
    assert_eq!(answer["usage"]["completion_tokens"], 3, "{answer}");
    assert_eq!((state(&server, "a"), state(&server, "b")), ("loaded".to_string(), "unloaded".to_string()));
    let (status, answer) =
        server.post("/v1/completions", &json!({ "model": "c", "prompt": "hello", "ignore_eos": true }));
    assert_eq!(
        (status, &answer["model"], &answer["usage"]["completion_tokens"]),
        (200, &json!("c"), &json!(2))
    );
    let (_, described) = server.get("/v1/models/c");
    assert_eq!((&described["slots"], &described["context"]), (&json!(3), &json!(512)));
    // Covers requests that only need the vocabulary, and embeddings.
    let (status, tokens) = server.post("/tokenize", &json!({ "content": "hello", "model": "b" }));
    assert_eq!(status, 200, "{tokens}");
    let (status, embedding) = server.post("/v1/embeddings", &json!({ "input": "hello", "model": "b" }));
    assert_eq!((status, &embedding["model"]), (200, &json!("b")), "{embedding}");
    assert_eq!(metric(&server, "anneal_generated_tokens_total", "a"), 3.0);
    assert_eq!(metric(&server, "anneal_generated_tokens_total", "c"), 2.0);
    assert_eq!(metric(&server, "anneal_model_loads_total", "b"), 1.0);
    // The response contains all models.
    let (_, seen) = server.get("/status");
    assert_eq!(shown(&seen, "a"), ("loaded".to_string(), 2), "{seen}");
    assert_eq!(shown(&seen, "c"), ("loaded".to_string(), 3), "{seen}");
    assert_eq!(
        (&seen["totals"]["decode_tokens"], &seen["totals"]["requests"]),
        (&json!(5), &json!(2)),
        "{seen}"
    );
}

#[test]
fn what_was_used_longest_ago_goes_for_want_of_memory_and_comes_back() {
    let server = configured(&format!("memory_limit = \"{}KiB\"\n{THREE}", (2 * one() + 4096) / 1024), &FILES);
    let first = server.ask(&of("a", 4));
    server.ask(&of("b", 1));
    server.ask(&of("a", 1));
    // The limit leaves room for two models, and b was used least recently.
    assert_eq!(server.ask(&of("c", 1))["usage"]["completion_tokens"], 1);
    let all = states(&server);
    let expected = [("a", "loaded"), ("b", "unloaded"), ("c", "loaded")];
    assert_eq!(all, expected.map(|(name, state)| (name.to_string(), state.to_string())));
    assert_eq!((metric(&server, "anneal_slots", "b"), metric(&server, "anneal_slots", "c")), (0.0, 3.0));
    let (_, seen) = server.get("/status");
    assert_eq!((shown(&seen, "b"), shown(&seen, "c").1), (("unloaded".to_string(), 0), 3), "{seen}");
    assert_eq!(server.ask(&of("b", 1))["usage"]["completion_tokens"], 1);
    assert_eq!(state(&server, "a"), "unloaded");
    assert_eq!(server.ask(&of("a", 4))["text"], first["text"]);
    assert_eq!(metric(&server, "anneal_model_loads_total", "a"), 2.0);
    assert!(metric(&server, "anneal_model_memory_bytes", "a") as u64 == one());
}

#[test]
fn one_that_is_in_use_stays_until_its_answers_are_done() {
    let server = configured(&format!("memory_limit = \"{}KiB\"\n{THREE}", (one() + 4096) / 1024), &FILES);
    let mut long = of("a", 400);
    long["stream"] = true.into();
    let mut running = server.connect();
    running.send(long.to_string().as_bytes());
    running.next().expect("a token");
    // The request waits for memory until its time limit.
    let mut short = of("b", 1);
    short["timeout_s"] = 0.1.into();
    let late = server.ask(&short);
    assert_eq!(late["error"]["code"], "deadline", "{late}");
    assert_eq!(state(&server, "a"), "loaded");
    let other = {
        let socket = server.socket();
        std::thread::spawn(move || crate::client::Lines::new(&socket).ask(&of("b", 2)))
    };
    let last = loop {
        let line = running.next().expect("the rest");
        if line.get("done").is_some() || line.get("error").is_some() {
            break line;
        }
    };
    assert_eq!(
        (&last["stop"], &last["usage"]["completion_tokens"]),
        (&json!("length"), &json!(400)),
        "{last}"
    );
    assert_eq!(other.join().expect("an answer")["usage"]["completion_tokens"], 2);
    assert_eq!(state(&server, "a"), "unloaded");
}

#[test]
fn one_that_does_not_fit_is_refused_with_what_would() {
    let limit = one() - 512 * 1024;
    let text = format!("memory_limit = \"{}KiB\"\n{THREE}", limit / 1024);
    let server = configured(&text.replace("ctx_size = 512", "ctx_size = 4096"), &FILES);
    let refused = server.ask(&of("a", 1));
    assert_eq!(refused["error"]["code"], "model_unavailable", "{refused}");
    let message = refused["error"]["message"].as_str().expect("an error");
    assert!(message.contains("memory_limit") && message.contains("would fit"), "{message}");
    assert!(refused["error"]["retry_after"].as_u64().is_some_and(|seconds| seconds >= 1), "{refused}");
}

#[test]
fn one_that_cannot_be_loaded_is_told_and_tried_again() {
    let server = configured(THREE, &["b.gguf", "c.gguf"]);
    let asked = server.ask(&of("a", 1));
    assert_eq!(asked["error"]["code"], "model_unavailable", "{asked}");
    let message = asked["error"]["message"].to_string();
    assert!(message.contains("a.gguf"), "{message}");
    let folder = server.folder.path().to_str().expect("a folder");
    assert!(!message.contains(folder), "a client is told the path of the server's files: {message}");
    let (status, _) = server.post("/v1/completions", &of("a", 1));
    assert!(status == 503, "{status}");
    assert_eq!(state(&server, "a"), "failed");
    assert_eq!(server.ask(&of("b", 1))["usage"]["completion_tokens"], 1);
    std::os::unix::fs::symlink(tiny(), server.folder.path().join("a.gguf")).expect("a link");
    let begin = std::time::Instant::now();
    while server.ask(&of("a", 1)).get("error").is_some() {
        assert!(begin.elapsed() < PATIENCE, "loading is not retried");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(metric(&server, "anneal_model_load_failures_total", "a") >= 1.0);
}

/// A draft model belongs to its model. It counts towards the memory, but is not shared with other models or listed
/// separately.
#[test]
fn a_smaller_model_is_its_models() {
    let missing = "slots = 2\nctx_size = 512\nmemory_limit = \"2GiB\"\n[models.a]\npath = \"a.gguf\"\ndraft_model = \"b.gguf\"\n\
                   draft_near = true\n[models.b]\npath = \"b.gguf\"\ndraft_model = \"nothing.gguf\"\n";
    let server = configured(missing, &FILES);
    let answer = server.ask(&of("a", 40));
    assert_eq!(answer["usage"]["completion_tokens"], 40, "{answer}");
    // If a file of the new configuration is missing, the old configuration stays in use.
    let file = server.folder.path().join("server_config.toml");
    for (from, to) in [
        ("draft_model = \"b.gguf\"", "draft_model = \"gone.gguf\""),
        ("path = \"a.gguf\"", "path = \"gone.gguf\""),
    ] {
        let text = std::fs::read_to_string(&file).expect("the configuration");
        std::fs::write(&file, text.replace(from, to)).expect("another one");
        server.signal("HUP");
        std::thread::sleep(Duration::from_millis(300));
        let answer = server.ask(&of("a", 2));
        assert_eq!(answer["usage"]["completion_tokens"], 2, "{answer}");
        std::fs::write(&file, text).expect("the first one");
    }
    let refused = server.ask(&of("b", 4));
    let why = refused["error"]["message"].as_str().expect("words");
    assert!(why.contains("nothing.gguf") && !why.contains('/'), "{why}");
    // The limit is just below the estimate for both models with a context each.
    let tight = format!("memory_limit = \"{}KiB\"\n", (2 * one() - 1) / 1024);
    let server = configured(&missing.replace("memory_limit = \"2GiB\"\n", &tight), &FILES);
    let refused = server.ask(&of("a", 4));
    let why = refused["error"]["message"].as_str().expect("words");
    assert!(why.contains("with the draft model b.gguf needs"), "{why}");
}

#[test]
fn a_crowd_gets_what_it_asked_for_whichever_model_goes() {
    let server = configured(&format!("memory_limit = \"{}KiB\"\n{THREE}", (2 * one() + 4096) / 1024), &FILES);
    let expected = server.ask(&of("a", 3))["text"].clone();
    std::thread::scope(|scope| {
        for client in 0..6 {
            let (server, expected) = (&server, &expected);
            scope.spawn(move || {
                for turn in 0..4 {
                    let model = ["a", "b", "c"][(client + turn) % 3];
                    let answer = server.ask(&of(model, 3));
                    assert_eq!(&answer["text"], expected, "{model}: {answer}");
                }
            });
        }
    });
    let loads: f64 =
        ["a", "b", "c"].iter().map(|name| metric(&server, "anneal_model_loads_total", name)).sum();
    assert!(loads >= 3.0, "{loads}");
}

#[test]
fn a_configuration_that_is_read_again_adds_and_removes_models() {
    let mut server = configured(THREE, &FILES);
    server.ask(&of("a", 1));
    server.ask(&of("b", 1));
    let text = "slots = 2\nctx_size = 512\n[models.a]\npath = \"a.gguf\"\nmax_tokens = 5\nctx_size = 512\n[models.new]\npath = \"c.gguf\"\n";
    std::fs::write(server.folder.path().join("server_config.toml"), text).expect("written");
    server.signal("HUP");
    let begin = std::time::Instant::now();
    while server.get("/v1/models/new").0 != 200 {
        assert!(begin.elapsed() < PATIENCE, "the new model does not appear");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(server.ask(&of("b", 1))["error"]["code"], "model_not_found");
    assert_eq!(server.ask(&of("new", 1))["usage"]["completion_tokens"], 1);
    let answer = server.ask(&json!({ "model": "a", "prompt": "hello", "ignore_eos": true }));
    assert_eq!(answer["usage"]["completion_tokens"], 5);
    // A setting that takes effect at once does not reload the model.
    assert_eq!(metric(&server, "anneal_model_loads_total", "a"), 1.0);
    // A change of the context size reloads the model.
    std::fs::write(
        server.folder.path().join("server_config.toml"),
        text.replace("5\nctx_size = 512", "5\nctx_size = 1024"),
    )
    .expect("written");
    server.signal("HUP");
    wait_for_state(&server, "a", "unloaded");
    assert_eq!(server.ask(&of("a", 1))["usage"]["completion_tokens"], 1);
    assert_eq!(server.get("/v1/models/a").1["context"], 1024);
    server.signal("TERM");
    assert_eq!(server.code(), Some(0));
}

#[test]
fn the_first_one_is_the_default_and_there_from_the_start() {
    let server = configured(
        "model = \"a.gguf\"\nctx_size = 512\n[models.b]\npath = \"b.gguf\"\n[models.c]\npath = \"c.gguf\"\npreload = true\n",
        &FILES,
    );
    let all: Vec<String> = states(&server).into_iter().map(|(_, state)| state).collect();
    assert_eq!(all, ["loaded", "unloaded", "loaded"]);
    let (_, answer) = server.post("/v1/completions", &greedy("hello", 1));
    assert_eq!(answer["model"], "a");
    assert_eq!(server.ready["context"], 512);
}

/// Returns the answer to a request to `/models/load` or `/models/unload`.
fn control(server: &Server, path: &str, body: &Value) -> (u16, Value) {
    server.post(&format!("/models/{path}"), body)
}

#[test]
fn clients_load_and_unload_models() {
    let server = configured(THREE, &FILES);
    for name in ["a", "b"] {
        let (status, answer) = control(&server, "load", &json!({ "model": name }));
        assert_eq!(status, 200, "{answer}");
        assert_eq!((&answer["success"], &answer["model"]["id"]), (&json!(true), &json!(name)));
        assert_eq!(answer["model"]["state"], "loaded");
    }
    assert_eq!(server.get("/models"), server.get("/v1/models"));
    assert_eq!((state(&server, "a"), state(&server, "c")), ("loaded".to_string(), "unloaded".to_string()));
    // Loading a loaded model and unloading an unloaded model change nothing.
    assert_eq!(control(&server, "load", &json!({ "model": "a" })).0, 200);
    assert_eq!(control(&server, "unload", &json!({ "model": "c" })).0, 200);
    assert_eq!(metric(&server, "anneal_model_loads_total", "a"), 1.0);
    let (status, answer) = control(&server, "unload", &json!({ "model": "a" }));
    assert_eq!((status, &answer["model"]["state"]), (200, &json!("unloaded")), "{answer}");
    assert_eq!((state(&server, "a"), state(&server, "b")), ("unloaded".to_string(), "loaded".to_string()));
    // The next request loads the model again.
    assert_eq!(server.ask(&of("a", 2))["usage"]["completion_tokens"], 2);
    assert_eq!(metric(&server, "anneal_model_loads_total", "a"), 2.0);
    for (path, body, expected) in [
        ("load", json!({}), "model: is missing"),
        ("unload", json!({ "model": 1 }), "model: use a string, not 1"),
        ("unload", json!({ "model": "a", "force": true }), "force: unknown field"),
        ("load", json!({ "model": "a", "timeout_s": 0 }), "timeout_s: use a number from"),
        ("load", json!({ "model": "d" }), "unknown model \"d\""),
        ("unload", json!({ "model": "d" }), "unknown model \"d\""),
    ] {
        let (status, answer) = control(&server, path, &body);
        let message = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(matches!(status, 400 | 404) && message.starts_with(expected), "{path}: {answer}");
    }
    // An invalid request does not load its model.
    for (body, expected) in [
        (json!({ "model": "c", "timeout_s": 0 }), "timeout_s: use a number from"),
        (json!({ "model": "c", "timeout_s": "a" }), "timeout_s: use a number"),
        (json!({ "model": "c", "force": true }), "force: unknown field"),
    ] {
        let (status, answer) = control(&server, "load", &body);
        let message = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(status == 400 && message.starts_with(expected), "{answer}");
    }
    assert_eq!(
        (state(&server, "c"), metric(&server, "anneal_model_loads_total", "c")),
        ("unloaded".into(), 0.0)
    );
}

#[test]
fn unloading_waits_for_running_requests() {
    let server = configured(THREE, &FILES);
    let mut long = server.connect();
    let mut request = of("a", 400);
    request["stream"] = json!(true);
    long.send(request.to_string().as_bytes());
    assert!(long.next().expect("a token").get("error").is_none());
    let (status, answer) = control(&server, "unload", &json!({ "model": "a", "timeout_s": 0.001 }));
    assert_eq!((status, &answer["error"]["code"]), (504, &json!("deadline")), "{answer}");
    // The request is answered completely before the model is unloaded.
    let last = std::thread::scope(|scope| {
        let unload = scope.spawn(|| control(&server, "unload", &json!({ "model": "a" })));
        let is_last = |line: &Value| line.get("done").is_some() || line.get("error").is_some();
        let last = std::iter::from_fn(|| long.next()).find(is_last).expect("an end");
        let (status, answer) = unload.join().expect("an answer");
        assert_eq!((status, &answer["model"]["state"]), (200, &json!("unloaded")), "{answer}");
        last
    });
    assert_eq!(
        (&last["stop"], &last["usage"]["completion_tokens"]),
        (&json!("length"), &json!(400)),
        "{last}"
    );
}

#[test]
fn a_model_that_cannot_be_loaded_says_why() {
    let server = configured(THREE, &["a.gguf", "b.gguf"]);
    let (status, answer) = control(&server, "load", &json!({ "model": "c" }));
    assert_eq!((status, &answer["error"]["code"]), (503, &json!("model_unavailable")), "{answer}");
    let (_, described) = server.get("/v1/models/c");
    assert!(described["state"] == "failed" && described["error"].is_string(), "{described}");
}

#[test]
fn the_only_model_can_be_unloaded_and_comes_back() {
    let server = Server::start(&["--name", "smith"]);
    let before = server.ask(&greedy("hello", 4));
    let (status, answer) = control(&server, "unload", &json!({ "model": "smith" }));
    assert_eq!((status, &answer["model"]["state"]), (200, &json!("unloaded")), "{answer}");
    assert_eq!(server.get("/health"), (200, json!({ "status": "ok" })));
    assert_eq!(server.ask(&greedy("hello", 4))["tokens"], before["tokens"]);
    assert_eq!(state(&server, "smith"), "loaded");
}
