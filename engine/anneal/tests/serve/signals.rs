//! Tests of signals: signals that end the server, signals that do not, and SIGHUP, which reloads the configuration.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::client::{PATIENCE, Server, command, greedy};
use crate::common::{self, tiny};

fn signal(child: &Child, name: &str) {
    let status = Command::new("kill").args([format!("-{name}"), child.id().to_string()]).status();
    assert!(status.expect("kill runs").success());
}

/// Returns a command that runs `inner` as nohup would.
fn without_hang_up(inner: &Command) -> Command {
    let mut outer = Command::new("sh");
    outer.args(["-c", "trap '' HUP; exec \"$0\" \"$@\""]).arg(inner.get_program()).args(inner.get_args());
    outer.stdout(Stdio::piped()).stderr(Stdio::piped());
    outer
}

/// Starts a server with the configuration `text`, whose file is in the server's folder.
fn configured(text: &str) -> Server {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let config = folder.path().join("server_config.toml");
    std::fs::write(&config, text).expect("written");
    let mut command = command(&["--config", config.to_str().expect("UTF-8")]);
    command.arg("--socket").arg(folder.path().join("a.sock"));
    Server::with(command, folder)
}

#[test]
fn a_terminal_that_closes_ends_it_unless_that_was_ignored() {
    let mut server = Server::start(&[]);
    server.signal("HUP");
    assert_eq!(server.code(), Some(0));

    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut inner = command(&[]);
    inner.arg("--socket").arg(folder.path().join("a.sock"));
    let mut server = Server::with(without_hang_up(&inner), folder);
    for _ in 0..3 {
        server.signal("HUP");
        assert_eq!(server.ask(&greedy("hello", 2))["usage"]["completion_tokens"], 2);
    }
    server.signal("TERM");
    assert_eq!(server.code(), Some(0));
}

#[test]
fn a_terminal_that_closes_does_not_end_a_run_under_nohup() {
    let mut inner = common::command();
    inner
        .args(["run", "-t", "1", "-p", "a", "-n", "-1", "-c", "65536", "--ignore-eos", "--greedy", "-m"])
        .arg(tiny());
    let mut child = without_hang_up(&inner).spawn().expect("it runs");
    let mut stdout = child.stdout.take().expect("piped");
    let mut text = vec![0; 64];
    stdout.read_exact(&mut text).expect("some text");
    signal(&child, "HUP");
    std::thread::sleep(Duration::from_millis(100));
    signal(&child, "HUP");
    text.resize(4096, 0);
    stdout.read_exact(&mut text).expect("more text");
    let reader = std::thread::spawn(move || std::io::copy(&mut stdout, &mut std::io::sink()));
    signal(&child, "TERM");
    assert_eq!(child.wait().expect("it ends").code(), Some(130));
    reader.join().expect("a reader").expect("it is read");
}

#[test]
fn a_terminal_that_closes_is_no_second_signal() {
    let mut server = Server::start(&["--slots", "1"]);
    let mut running = server.connect();
    let mut request = greedy("red heat", 2000);
    request["stream"] = true.into();
    running.send(request.to_string().as_bytes());
    running.next().expect("a token");
    server.signal("TERM");
    while server.socket().exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
    server.signal("HUP");
    let last = loop {
        let line = running.next().expect("the rest");
        if line.get("done").is_some() {
            break line;
        }
    };
    assert_eq!((&last["stop"], server.code()), (&json!("length"), Some(0)));
}

#[test]
fn a_signal_while_the_model_is_loaded_leaves_no_socket() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let socket = folder.path().join("a.sock");
    for name in ["TERM", "INT", "HUP"] {
        let mut command = command(&[]);
        let mut child = command.arg("--socket").arg(&socket).spawn().expect("it runs");
        let begin = Instant::now();
        while !socket.exists() {
            assert!(begin.elapsed() < PATIENCE, "there is no socket");
        }
        signal(&child, name);
        let code = child.wait().expect("it ends").code();
        let number =
            [("TERM", 143), ("INT", 130), ("HUP", 129)].into_iter().find(|(other, _)| *other == name);
        // The exit code is 0 if the server was already running.
        assert!(code == Some(0) || code == number.map(|(_, code)| code), "{name}: {code:?}");
        assert!(!socket.exists(), "{name}");
    }
}

#[test]
fn a_long_step_does_not_delay_the_end() {
    let sizes = ["-c", "8192", "-b", "8192", "-ub", "8192"];
    let mut server = Server::start(&[&sizes[..], &["--slots", "1", "--drain", "0.1"]].concat());
    let mut running = server.connect();
    let mut request = greedy("", 10);
    request["prompt"] = json!(vec![1000; 8000]);
    running.send(request.to_string().as_bytes());
    server.wait_for("anneal_slots_busy", 1.0);
    server.signal("TERM");
    let last = running.next().expect("an answer");
    // Not even the first token was generated, because the step was abandoned.
    assert_eq!(
        (&last["stop"], &last["usage"]["completion_tokens"]),
        (&json!("shutdown"), &json!(0)),
        "{last}"
    );
    assert_eq!(server.code(), Some(0));
}

/// Returns a function that returns the next line of the server's stderr.
fn said(server: &mut Server) -> impl FnMut() -> String + use<> {
    let mut stderr = BufReader::new(server.child.stderr.take().expect("piped"));
    move || {
        let mut line = String::new();
        stderr.read_line(&mut line).expect("a line");
        line
    }
}

fn rewrite(folder: &Path, text: &str) {
    std::fs::write(folder.join("server_config.toml"), text).expect("written");
}

#[test]
fn a_configuration_is_read_again_under_nohup_too() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let config = folder.path().join("server_config.toml");
    std::fs::write(&config, "max_tokens = 3\n").expect("written");
    let mut inner = command(&["--config", config.to_str().expect("UTF-8")]);
    inner.arg("--socket").arg(folder.path().join("a.sock"));
    let mut server = Server::with(without_hang_up(&inner), folder);
    let mut said = said(&mut server);
    rewrite(server.folder.path(), "max_tokens = 5\n");
    server.signal("HUP");
    let line = said();
    assert!(line.ends_with("changed now: max_tokens = 5\n"), "{line}");
    server.signal("TERM");
    assert_eq!(server.code(), Some(0));
}

#[test]
fn a_configuration_is_read_again() {
    let mut server = configured("max_tokens = 3\ntemperature = 0.0\nslots = 2\n");
    let mut said = said(&mut server);
    let asked = |server: &Server| {
        server.ask(&json!({ "prompt": "hello", "ignore_eos": true }))["usage"]["completion_tokens"].clone()
    };
    let mut open = server.connect();
    assert_eq!(asked(&server), 3);
    rewrite(server.folder.path(), "max_tokens = 5\ntemperature = 0.0\nslots = 3\nmax_request_bytes = 1024\n");
    server.signal("HUP");
    let line = said();
    let expected = "changed now: max_request_bytes = 1024, max_tokens = 5; after a restart: slots\n";
    assert!(line.ends_with(expected), "{line}");
    assert_eq!(asked(&server), 5);
    // The setting also applies to connections that are already open.
    assert_eq!(open.ask(&greedy(&"a".repeat(2000), 1))["error"]["code"], "request_too_large");

    for (wrong, expected) in
        [("max_tokens = 0\n", "max_tokens: use"), ("max_tokns = 9\n", "did you mean max_tokens")]
    {
        rewrite(server.folder.path(), wrong);
        server.signal("HUP");
        let line = said();
        assert!(line.starts_with("warning: the configuration is unchanged:"), "{line}");
        assert!(line.contains(expected), "{line}");
        assert_eq!(asked(&server), 5);
    }
    // Neither a pipe without a writer nor an endless file blocks the server.
    let config = server.folder.path().join("server_config.toml");
    for command in [&["mkfifo"][..], &["ln", "-s", "/dev/zero"]] {
        std::fs::remove_file(&config).expect("removed");
        let made = Command::new(command[0]).args(&command[1..]).arg(&config).status();
        assert!(made.expect("it runs").success());
        server.signal("HUP");
        let line = said();
        assert!(
            line.contains("the configuration is unchanged:") && line.contains("not a regular file"),
            "{line}"
        );
        assert_eq!(asked(&server), 5);
    }
    server.signal("TERM");
    assert_eq!(server.code(), Some(0));
}
