//! Tests of long texts sent to a server or a program.

use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::tiny_with;
use crate::client::{self, Server};
use crate::{common, effort};

/// Pre-tokenizer that once split with `std::regex`.
const PRE: &str = "bloom";

/// Starts a server of a tiny model with the pre-tokenizer [`PRE`].
fn server(more: &[&str]) -> Server {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let model = tiny_with(PRE, folder.path());
    let mut command = common::command();
    command.args(["serve", "--json", "-t", "1", "--chat-template", "chatml", "-m"]).arg(model).args(more);
    command.arg("--socket").arg(folder.path().join("a.sock"));
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    Server::with(command, folder)
}

/// Counts the tokens of `letters` letters with the server.
fn tokens(server: &Server, letters: usize) -> usize {
    let (status, answer) = server.post("/tokenize", &json!({ "content": "a".repeat(letters) }));
    assert_eq!(status, 200, "{answer}");
    answer["tokens"].as_array().expect("tokens").len()
}

/// Splitting these texts with `std::regex` once ended the server.
#[test]
fn no_text_ends_a_server() {
    let server = server(&["-c", "16384"]);
    // Judging by the number of bytes, both texts could fit into the context, but they have too many tokens.
    for letters in [20_000, 200_000] {
        assert!(tokens(&server, letters) > 0);
        let text = "a".repeat(letters);
        let requests = [
            ("/v1/completions", json!({ "prompt": text, "max_tokens": 1 })),
            (
                "/v1/chat/completions",
                json!({ "messages": [{ "role": "user", "content": text }], "max_tokens": 1 }),
            ),
        ];
        for (path, request) in requests {
            let (status, answer) = server.post(path, &request);
            assert_eq!(
                (status, &answer["error"]["code"]),
                (400, &json!("context_length_exceeded")),
                "{answer}"
            );
        }
        let answer = server.ask(&json!({ "prompt": text, "max_tokens": 1 }));
        assert!(answer.is_object(), "{answer}");
    }
    assert_eq!(server.get("/health").0, 200);
}

/// A text with more bytes than the context can hold is rejected before tokenisation, with both numbers in the error.
#[test]
fn texts_beyond_the_context_are_refused_by_their_bytes() {
    let server = server(&["-c", "256"]);
    let text = "a ".repeat(100_000);
    let completion = json!({ "prompt": text, "max_tokens": 1 });
    let chat = json!({ "messages": [{ "role": "user", "content": text }], "max_tokens": 1 });
    for (path, request) in [("/v1/completions", &completion), ("/v1/chat/completions", &chat)] {
        let (status, answer) = server.post(path, request);
        assert_eq!((status, &answer["error"]["code"]), (400, &json!("context_length_exceeded")), "{answer}");
        says_the_numbers(answer["error"]["message"].as_str().expect("words"));
    }
    says_the_numbers(&server.ask(&completion).to_string());
    let (status, answer) = server.post("/tokenize", &json!({ "content": text }));
    assert_eq!((status, &answer["error"]["code"]), (400, &json!("context_length_exceeded")), "{answer}");
    says_the_numbers(answer["error"]["message"].as_str().expect("words"));

    let folder = tempfile::tempdir().expect("a temporary folder");
    let (model, file) = (tiny_with(PRE, folder.path()), folder.path().join("text"));
    std::fs::write(&file, &text).expect("written");
    let mut command = common::command();
    command.args(["run", "-c", "256", "-n", "1", "-m"]).arg(&model).arg("-f").arg(&file);
    let (code, _, stderr) = common::parts(&command.output().expect("the executable runs"));
    assert_eq!(code, Some(1), "{stderr}");
    says_the_numbers(&stderr);
}

fn says_the_numbers(message: &str) {
    for part in ["bytes", "256 tokens", "per token"] {
        assert!(message.contains(part), "{message}");
    }
}

/// Very long texts of several clients share one thread, and requests of other clients do not wait for these texts.
#[test]
fn a_long_text_delays_nobody_else() {
    let server = server(&["-c", "100096"]);
    // Judging by its number of bytes, the text could fit into the context. No text of the same length is slower.
    let long = json!({ "content": "aB1中 !".repeat((1 << 20) / 8) }).to_string();
    let socket = server.socket();
    std::thread::scope(|scope| {
        let senders: Vec<_> = (0..4)
            .map(|_| {
                let (long, socket) = (&long, &socket);
                scope.spawn(move || {
                    for _ in 0..effort::choose(1, 7) {
                        let stream = UnixStream::connect(socket).expect("it listens");
                        let (status, ..) = client::http(stream, "POST", "/tokenize", &[], long.as_bytes());
                        assert_eq!(status, 200);
                    }
                })
            })
            .collect();
        let mut slowest = Duration::ZERO;
        let mut asked = 0;
        while senders.iter().any(|sender| !sender.is_finished()) || asked == 0 {
            let begin = Instant::now();
            // A chat is prepared on the threads for light work.
            let chat = json!({ "messages": [{ "role": "user", "content": "hello" }], "max_tokens": 4 });
            let (status, answer) = server.post("/v1/chat/completions", &chat);
            assert_eq!(status, 200, "{answer}");
            slowest = slowest.max(begin.elapsed());
            asked += 1;
        }
        for sender in senders {
            sender.join().expect("a client with its answers");
        }
        eprintln!("{asked} chats at the same time as long texts, the slowest in {slowest:?}");
        assert!(slowest < Duration::from_secs(10), "a chat took {slowest:?}");
        assert_eq!(server.get("/health").1.get("status"), Some(&Value::from("ok")));
    });
}
