//! Test of the memory for the longest requests: at most twelve times their size, plus a fixed allowance.

use std::os::unix::net::UnixStream;

use host::process::{ProcFolder, resident};
use serde_json::Value;

use crate::client::{Server, greedy, http};
use crate::effort::choose;

/// Default maximum size of a request, in bytes.
const SIZE: usize = 8 << 20;

/// Fixed allowance in bytes, for values in trees. The number of such values is limited independently of a request's
/// size.
const ALLOWANCE: u64 = 32 << 20;

/// Builds a body that starts with `head` and ends with `tail`. Between `head` and `tail`, `part` is repeated as often
/// as the size allows, separated by commas.
fn filled(head: &str, part: &str, tail: &str) -> String {
    let count = (SIZE - head.len() - tail.len() + 1) / (part.len() + 1);
    repeated(head, part, tail, count)
}

fn repeated(head: &str, part: &str, tail: &str, count: usize) -> String {
    let mut body = format!("{head}{}", format!("{part},").repeat(count));
    body.truncate(body.len() - 1);
    body + tail
}

/// Builds a body with a single text, which repeats `part` as often as it fits.
fn text(head: &str, part: &str, tail: &str) -> String {
    format!("{head}{}{tail}", part.repeat((SIZE - head.len() - tail.len()) / part.len()))
}

/// Returns the maximum growth of the memory of `server` above `before` bytes while it answers `body`. Also returns
/// the answer.
fn rise(server: &Server, before: u64, path: &str, body: &str) -> (u64, u16, String) {
    let process = ProcFolder::of(server.child.id());
    process.reset_peak();
    let stream = UnixStream::connect(server.socket()).expect("it listens");
    let (status, _, text) = http(stream, "POST", path, &[], body.as_bytes());
    (process.peak_resident().expect("a process").saturating_sub(before), status, text)
}

#[test]
fn the_longest_requests_take_at_most_twelve_times_their_size() {
    let server = Server::start(&["--chat-template", "chatml"]);
    // The first request allocates permanent memory, which must not be attributed to the long requests.
    server.ask(&greedy("hello", 2));
    let before = resident(server.child.id()).expect("a process");
    let chat = "/v1/chat/completions";
    let text_of = "/v1/completions";
    let messages = r#"{"messages":["#;
    let user = |content: &str| format!(r#"{{"role":"user","content":"{content}"}}"#);
    let tree = r#"{"prompt":"a","max_tokens":1,"x":"#;
    let values = "more than 65536 values";
    let context = "the context of this server";
    let too_long = "a context of 4096 tokens holds at most";
    let object = r#"{"":0}"#;
    let tools = r#"{"messages":[{"role":"user","content":"a"}],"max_tokens":1,"tools":[{"type":"function","function":{"name":"f","parameters":{"x":["#;
    let half = SIZE / 2 - 50;
    let mut distinct = String::from(r#"{"prompt":"a","max_tokens":1"#);
    let mut at = 0;
    while distinct.len() < SIZE - 20 {
        distinct.push_str(&format!(",\"k{at}\":0"));
        at += 1;
    }
    distinct.push('}');
    let cases = [
        // Short requests come first, because memory that long requests leave to the allocator would hide their use.
        ("as many lists as may be", text_of, repeated(&format!("{tree}["), "[0]", "]}", 32_000), 200, ""),
        ("as many objects as may be", text_of, repeated(&format!("{tree}["), object, "]}", 21_000), 200, ""),
        ("tools of many values", chat, repeated(tools, object, "]}}}]}", 21_000), 200, ""),
        (
            "as many small messages as may be",
            chat,
            repeated(messages, &user("a"), "]}", 13_000),
            400,
            too_long,
        ),
        ("tokens and a number", text_of, filled(r#"{"prompt":[1.5,"#, "1", "]}"), 400, "in a list, not 1.5"),
        ("lists of lists", text_of, filled(r#"{"prompt":["#, "[1]", "]}"), 400, "a single string"),
        ("a list of tokens", text_of, filled(r#"{"prompt":["#, "1", "]}"), 400, context),
        ("tokens to a text", "/detokenize", filled(r#"{"tokens":["#, "7", "]}"), 400, "at most 1048576"),
        ("many short texts", "/v1/embeddings", filled(r#"{"input":["#, "\"a\"", "]}"), 400, "1 to 2048"),
        ("many small messages", chat, filled(messages, &user("a"), "]}"), 400, values),
        ("deep lists", text_of, format!("{tree}{}", "[".repeat(SIZE - 100)), 400, "not JSON"),
        (
            "deep lists that end",
            text_of,
            format!("{tree}{}{}}}", "[".repeat(half), "]".repeat(half)),
            400,
            "recursion limit",
        ),
        ("many keys", text_of, filled(r#"{"prompt":"a","max_tokens":1,"#, r#""k":1"#, "}"), 400, values),
        ("many values", text_of, filled(&format!("{tree}["), "1", "]}"), 400, values),
        ("a long bias", text_of, filled(r#"{"prompt":"a","logit_bias":["#, "[1,1]", "]}"), 400, values),
        ("many different keys", text_of, distinct, 400, "more than 256 fields"),
        ("many long messages", chat, repeated(messages, &user(&"a".repeat(800)), "]}", 9300), 400, too_long),
        (
            "one long message",
            chat,
            text(r#"{"messages":[{"role":"user","content":""#, "steel ", r#""}]}"#),
            400,
            too_long,
        ),
        ("one long text", text_of, text(r#"{"prompt":""#, "steel ", "\"}"), 400, too_long),
        ("one long text to count", "/tokenize", text(r#"{"content":""#, "steel ", "\"}"), 400, too_long),
        ("escapes", text_of, text(r#"{"prompt":""#, r"\u00e9\n", "\"}"), 400, too_long),
    ];
    // A partial run sends every third request. These requests include lists of tokens, messages, keys and texts.
    let step = choose(3, 1);
    let mut failed = Vec::new();
    for (name, path, body, expected, words) in cases.into_iter().step_by(step) {
        assert!(body.len() <= SIZE, "{name}: {}", body.len());
        let (rise, status, text) = rise(&server, before, path, &body);
        let times = rise as f64 / body.len() as f64;
        println!("{name}: {} bytes, {rise} bytes of memory, {times:.1} times; {status}", body.len());
        let short: String = text.chars().take(200).collect();
        if status != expected || !text.contains(words) {
            failed.push(format!("{name}: {status}, {short}"));
        }
        if rise > 12 * body.len() as u64 + ALLOWANCE {
            failed.push(format!("{name}: {rise} bytes of memory for {}", body.len()));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    let (status, answer): (u16, Value) = server.get("/health");
    assert_eq!((status, &answer["status"]), (200, &"ok".into()));
}
