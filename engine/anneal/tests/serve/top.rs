//! Tests of `anneal top` and of the requests that it sends.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::client::{PATIENCE, Server, greedy, http, tcp};
use crate::common::{self, parts};

/// Returns exit code, stdout and stderr of `anneal top`.
fn top(server: &str, more: &[&str]) -> (Option<i32>, String, String) {
    let command = common::command().args(["top", server, "--interval", "0.1"]).args(more).output();
    parts(&command.expect("the executable runs"))
}

fn path(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

#[test]
fn what_runs_is_seen_but_not_what_it_is_about() {
    let server = Server::start(&["-c", "65536", "--slots", "2"]);
    let mut lines = server.connect();
    let mut request = greedy("a very secret matter", 60_000);
    request["stream"] = true.into();
    lines.send(request.to_string().as_bytes());
    let first = lines.next().expect("a token");
    assert!(first["token"].is_number(), "{first}");

    let (code, stdout, stderr) = top(path(&server.socket()), &["--once", "--json"]);
    assert_eq!(code, Some(0), "{stderr}");
    let seen: Value = serde_json::from_str(&stdout).expect("JSON");
    let slots = seen["models"][0]["slots"].as_array().expect("slots");
    let busy: Vec<&Value> = slots.iter().filter(|slot| slot["state"] != "idle").collect();
    assert_eq!((slots.len(), busy.len()), (2, 1), "{seen}");
    // If this test reads slowly, the slot waits for it.
    assert!(matches!(busy[0]["state"].as_str(), Some("decode" | "waiting")), "{seen}");
    assert!(busy[0]["generated_tokens"].as_u64().is_some_and(|count| count > 0), "{seen}");
    assert_eq!((&seen["status"], &seen["pid"]), (&Value::from("ok"), &Value::from(server.child.id())));
    assert_eq!(seen["threads"]["decode"], 1);
    assert!(seen["memory"]["resident_bytes"].as_u64().is_some_and(|bytes| bytes > 1 << 20), "{seen}");
    assert!(seen["rates"]["cpus"].is_number(), "{seen}");
    assert!(!stdout.contains("secret"), "{stdout}");

    // If stdout is a pipe, the output is a table without colours.
    let (code, stdout, stderr) = top(path(&server.socket()), &[]);
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    assert!(stdout.contains("slots 1 of 2 busy") && stdout.contains("SLOT STATE"), "{stdout}");
    assert!(!stdout.contains('\u{1b}') && !stdout.contains("secret"), "{stdout}");
}

#[test]
fn what_was_done_is_counted_as_it_goes() {
    let server = Server::start(&[]);
    let answer = server.ask(&greedy("hello", 12));
    let status = || -> Value {
        let stream = UnixStream::connect(server.socket()).expect("it listens");
        let (status, _, body) = http(stream, "GET", "/status", &[], b"");
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).expect("JSON")
    };
    let (begin, mut seen) = (Instant::now(), status());
    // The server does not close the connection of its answer immediately.
    while seen["connections"] != 1 && begin.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(10));
        seen = status();
    }
    assert_eq!(seen["totals"]["decode_tokens"], 12);
    assert_eq!(seen["totals"]["prefill_tokens"], answer["usage"]["prompt_tokens"]);
    assert_eq!((&seen["totals"]["requests"], &seen["connections"]), (&Value::from(1), &Value::from(1)));
    assert_eq!(server.metric("anneal_decode_tokens_total"), 12.0);
}

#[test]
fn an_address_wants_its_key() {
    let folder = tempfile::tempdir().expect("a folder");
    let keys = folder.path().join("keys.txt");
    std::fs::write(&keys, "0123456789abcdef\n").expect("written");
    std::fs::set_permissions(&keys, std::fs::Permissions::from_mode(0o600)).expect("a mode");
    let server = Server::start(&["--listen", "127.0.0.1:0", "--api-key-file", path(&keys)]);
    assert_eq!(tcp(&server, "GET", "/status", &[], b"").0, 401);
    let url = format!("http://{}", server.address());
    let (code, stdout, stderr) = top(&url, &["--once"]);
    assert_eq!((code, stdout.as_str()), (Some(1), ""));
    assert!(stderr.contains("API key is missing"), "{stderr}");
    let (code, stdout, stderr) = top(&url, &["--once", "--api-key-file", path(&keys)]);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stdout.starts_with(&url), "{stdout}");
}

#[test]
fn nobody_there_is_told_with_a_code_of_its_own() {
    for more in [&["--once"][..], &["--once", "--json"]] {
        let (code, stdout, stderr) = top("/nowhere/a.sock", more);
        assert_eq!((code, stdout.as_str()), (Some(75), ""), "{stderr}");
        assert!(stderr.starts_with("error: no answer from /nowhere/a.sock"), "{stderr}");
        assert!(stderr.contains("\nhint: start the server with `anneal serve`"), "{stderr}");
    }
    for wrong in ["https://box", "http://box/path"] {
        let (code, _, stderr) = top(wrong, &["--once"]);
        assert!(code == Some(2) && stderr.contains("\nhint: "), "{wrong}: {stderr}");
    }
}

/// A terminal may close without a SIGHUP to the program, as under `nohup`: every read then returns the end of input.
#[test]
fn a_terminal_that_is_gone_ends_it() {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let server = Server::start(&[]);
    let terminal =
        openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("a terminal");
    grantpt(&terminal).and_then(|()| unlockpt(&terminal)).expect("its other end");
    let name = ptsname(&terminal, Vec::new()).expect("its name").into_string().expect("a path");
    let end = || std::fs::OpenOptions::new().read(true).write(true).open(&name).expect("its other end");
    let mut child = common::command()
        .args(["top", path(&server.socket())])
        .stdin(end())
        .stdout(end())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("the executable runs");
    let mut terminal = std::fs::File::from(terminal);
    // Waits until the program draws.
    std::io::Read::read_exact(&mut terminal, &mut [0; 16]).expect("a screen");
    drop(terminal);
    let begin = Instant::now();
    let ended = loop {
        match child.try_wait().expect("a child") {
            Some(status) => break Some(status),
            None if begin.elapsed() > PATIENCE => break None,
            None => std::thread::sleep(std::time::Duration::from_millis(10)),
        }
    };
    let _ = child.kill();
    let _ = child.wait();
    // The program ends normally or with a write error of the terminal. This test does not kill it.
    assert!(ended.is_some_and(|status| status.code().is_some()), "{ended:?}");
}
