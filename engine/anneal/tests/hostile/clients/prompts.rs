//! Tests of guesses at the prompts of other clients: neither an answer nor a counter may reveal how much of a guess
//! was right.

use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::{Value, json};

use crate::client::{PATIENCE, Server, command, greedy, http, tcp};
use crate::effort;

/// Returns a prompt of about `count` tokens. Prompts of different seeds have no common prefix.
fn prompt(seed: usize, count: usize) -> String {
    let tokens: Vec<String> =
        (0..count / 4).map(|at| format!("{} heats", (at * 7 + seed * 31) % 90 + 10)).collect();
    format!("{seed}: {}", tokens.join(" "))
}

fn key(number: usize) -> String {
    format!("a-key-of-client-{number:04}")
}

/// Writes the keys of the clients with the given `numbers`.
fn write_keys(path: &Path, numbers: impl Iterator<Item = usize>) {
    let text: String = numbers.map(|number| format!("{}\n", key(number))).collect();
    std::fs::write(path, text).expect("written");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).expect("a mode");
}

/// Starts a server with a socket, a TCP address and keys for `clients` clients.
fn server(clients: usize, more: &[&str]) -> Server {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let keys = folder.path().join("keys");
    write_keys(&keys, 0..clients);
    let mut command = command(&["-c", "4096", "--listen", "127.0.0.1:0", "--chat-template", "chatml"]);
    command.args(more).arg("--api-key-file").arg(&keys);
    command.arg("--socket").arg(folder.path().join("a.sock"));
    Server::with(command, folder)
}

/// Returns the answer to `body` for client `number`.
fn post(server: &Server, number: usize, path: &str, body: &Value) -> Value {
    let stream = TcpStream::connect(server.address()).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a limit");
    let key = format!("Authorization: Bearer {}", key(number));
    let (status, _, text) = http(stream, "POST", path, &[&key], body.to_string().as_bytes());
    assert_eq!(status, 200, "{text}");
    serde_json::from_str(&text).expect("JSON")
}

/// Returns the numbers of prompt tokens and of reused prompt tokens in an answer, from HTTP or from the line
/// protocol.
fn counts(answer: &Value) -> (u64, u64) {
    let usage = &answer["usage"];
    let cached = usage.get("cached_tokens").or(usage["prompt_tokens_details"].get("cached_tokens"));
    let cached = cached.and_then(Value::as_u64).unwrap_or_else(|| panic!("no usage in {answer}"));
    (usage["prompt_tokens"].as_u64().expect("a number"), cached)
}

/// Returns the number of prompt tokens that `ask` reused. Checks that all other prompt tokens were evaluated.
fn found(server: &Server, ask: impl FnOnce() -> Value) -> u64 {
    let before = server.metric("anneal_prefill_tokens_total");
    let (prompt, cached) = counts(&ask());
    let evaluated = server.metric("anneal_prefill_tokens_total") - before;
    assert_eq!(evaluated as u64, prompt - cached, "every prompt token is either reused or evaluated");
    cached
}

#[test]
fn a_guess_at_the_prompt_of_another_key_finds_nothing() {
    let guesses = effort::choose(4, 60);
    let server = server(guesses + 1, &["--slots", "3"]);
    let secret = prompt(1, 400);
    let long = counts(&post(&server, 0, "/v1/completions", &greedy(&secret, 2))).0;
    for guess in 1..=guesses {
        // The guesses are the whole prompt, and prefixes with different endings. Each guess comes from a separate
        // client.
        let text = match guess {
            1 => secret.clone(),
            _ => format!("{} cold", &secret[..secret.len() * (guess - 1) / guesses]),
        };
        let ask = || post(&server, guess, "/v1/completions", &greedy(&text, 2));
        assert_eq!(found(&server, ask), 0, "guess {guess}");
    }
    // The user of the socket is another client. Within one client, reuse works as before.
    assert_eq!(found(&server, || server.ask(&greedy(&secret, 2))), 0);
    assert_eq!(found(&server, || server.ask(&greedy(&secret, 2))), long - 1);
    let own = || post(&server, 1, "/v1/completions", &greedy(&secret, 2));
    found(&server, own);
    assert_eq!(found(&server, own), long - 1);
}

#[test]
fn a_conversation_of_another_key_is_not_found_either() {
    let server = server(2, &["--slots", "2"]);
    let chat = json!({
        "messages": [{ "role": "user", "content": prompt(2, 300) }], "max_tokens": 2, "temperature": 0,
    });
    let ask = |number| found(&server, || post(&server, number, "/v1/chat/completions", &chat));
    assert_eq!((ask(0), ask(1)), (0, 0));
    assert!(ask(0) > 200 && ask(1) > 200);
}

#[test]
fn a_salt_sets_requests_of_one_client_apart() {
    let server = server(1, &["--slots", "4"]);
    let salted = |salt: Option<&str>| {
        let mut request = greedy(&prompt(3, 300), 2);
        salt.into_iter().for_each(|salt| request["cache_salt"] = json!(salt));
        request
    };
    for ask in [&|request: &Value| server.ask(request), &|request: &Value| {
        post(&server, 0, "/v1/completions", request)
    }] as [&dyn Fn(&Value) -> Value; 2]
    {
        for salt in [None, Some("one user"), Some("another user")] {
            assert_eq!(found(&server, || ask(&salted(salt))), 0, "{salt:?}");
            assert!(found(&server, || ask(&salted(salt))) > 200, "{salt:?}");
        }
        let refused = |salt: Value| {
            let mut request = greedy("a", 1);
            request["cache_salt"] = salt;
            server.ask(&request)["error"]["message"].to_string()
        };
        assert!(refused(json!("")).contains("cache_salt: must not be empty"), "{}", refused(json!("")));
        assert!(refused(json!(1)).contains("cache_salt: use a string"));
        assert!(refused(json!("x".repeat(257))).contains("cache_salt: must have at most 256 characters"));
    }
}

#[test]
fn clients_share_where_the_configuration_says_so() {
    let server = server(2, &["--prompt-sharing"]);
    let request = greedy(&prompt(4, 300), 2);
    let ask = |number| found(&server, || post(&server, number, "/v1/completions", &request));
    assert_eq!(ask(0), 0);
    assert!(ask(1) > 200 && found(&server, || server.ask(&request)) > 200);
    let mut salted = request.clone();
    salted["cache_salt"] = json!("alone");
    assert_eq!(found(&server, || server.ask(&salted)), 0);
}

#[test]
fn what_is_on_the_disk_is_its_clients_alone() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let cache = folder.path().join("cache");
    let flags = ["--slots", "1", "--prompt-cache", cache.to_str().expect("UTF-8")];
    let secret = greedy(&prompt(5, 700), 4);
    let hits = |server: &Server| server.metric("anneal_prompt_cache_hits_total");
    let mut first = server(2, &flags);
    assert_eq!(found(&first, || post(&first, 0, "/v1/completions", &secret)), 0);
    // Another client takes the only slot, and the prompt is written to the disk.
    assert_eq!(found(&first, || post(&first, 1, "/v1/completions", &greedy(&prompt(6, 700), 4))), 0);
    first.wait_for("anneal_prompt_cache_writes_total", 1.0);
    assert_eq!(found(&first, || post(&first, 1, "/v1/completions", &secret)), 0);
    assert_eq!(hits(&first), 0.0);
    assert!(found(&first, || post(&first, 0, "/v1/completions", &secret)) > 500);
    assert_eq!(hits(&first), 1.0);
    first.signal("TERM");
    assert_eq!(first.code(), Some(0));

    let mut second = server(3, &flags);
    assert_eq!(found(&second, || post(&second, 2, "/v1/completions", &secret)), 0);
    assert_eq!(found(&second, || second.ask(&secret)), 0);
    assert!(found(&second, || post(&second, 0, "/v1/completions", &secret)) > 500);
    second.signal("TERM");
    assert_eq!(second.code(), Some(0));
    for entry in std::fs::read_dir(&cache).expect("a folder").flatten() {
        let bytes = std::fs::read(entry.path()).expect("a file");
        let key = key(0);
        assert!(!bytes.windows(key.len()).any(|part| part == key.as_bytes()), "a key is on the disk");
    }
}

#[test]
fn a_removed_key_loses_what_it_left() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let keys = folder.path().join("keys");
    write_keys(&keys, 0..2);
    let config = folder.path().join("server_config.toml");
    std::fs::write(&config, "api_key_file = \"keys\"\nlisten = \"127.0.0.1:0\"\n").expect("written");
    let mut command = command(&["-c", "4096", "--config", config.to_str().expect("UTF-8")]);
    command.arg("--socket").arg(folder.path().join("a.sock"));
    let server = Server::with(command, folder);
    let request = |number| greedy(&prompt(number + 10, 300), 2);
    let ask = |number| found(&server, || post(&server, number, "/v1/completions", &request(number)));
    assert_eq!((ask(0), ask(1)), (0, 0));
    assert!(ask(0) > 200 && ask(1) > 200);
    let status = |number| {
        let key = format!("Authorization: Bearer {}", key(number));
        tcp(&server, "GET", "/v1/models", &[&key], b"").0
    };
    for (numbers, expected) in [(1..2, 401), (0..2, 200)] {
        write_keys(&keys, numbers);
        server.signal("HUP");
        let begin = std::time::Instant::now();
        while status(0) != expected {
            assert!(begin.elapsed() < PATIENCE, "the keys are not read again");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        // The scheduler reads changed keys only while the scheduler is awake.
        assert!(ask(1) > 200);
    }
    assert_eq!(ask(0), 0, "a restored key must not restore its prompts");
}

#[test]
fn the_state_of_a_server_tells_a_key_no_numbers_of_other_clients() {
    let server = server(2, &["--slots", "2"]);
    let (long, _) = counts(&post(&server, 0, "/v1/completions", &greedy(&prompt(7, 300), 2)));
    let held = |key_of: Option<usize>| {
        let seen = match key_of {
            None => server.get("/status").1,
            Some(number) => {
                let key = format!("Authorization: Bearer {}", key(number));
                let (status, _, body) = tcp(&server, "GET", "/status", &[&key], b"");
                assert_eq!(status, 200, "{body}");
                serde_json::from_str::<Value>(&body).expect("JSON")
            }
        };
        let slots = seen["models"][0]["slots"].as_array().expect("slots");
        slots.iter().filter_map(|slot| slot["held_tokens"].as_u64()).sum::<u64>()
    };
    // Counters are updated before and after a batch.
    let begin = std::time::Instant::now();
    while held(None) < long {
        assert!(begin.elapsed() < PATIENCE, "nothing is held");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert!(held(Some(0)) >= long);
    assert_eq!(held(Some(1)), 0);
}
