//! Tests of the server's start and end.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use crate::client::{Server, command, greedy};
use crate::common::{self, parts};

/// Returns the error of a start that must fail with exit code `code`.
fn refused(arguments: &[&str], code: i32) -> String {
    let (found, stdout, stderr) = parts(&command(arguments).output().expect("the executable runs"));
    assert_eq!((found, stdout.as_str()), (Some(code), ""), "{arguments:?}: {stderr}");
    stderr
}

#[test]
fn sigterm_lets_what_runs_and_waits_finish() {
    for signal in ["TERM", "INT"] {
        let mut server = Server::start(&["--slots", "1"]);
        let (mut running, mut waiting) = (server.connect(), server.connect());
        let mut request = greedy("red heat", 1500);
        request["stream"] = true.into();
        running.send(request.to_string().as_bytes());
        running.next().expect("a token");
        waiting.send(greedy("hello", 3).to_string().as_bytes());
        server.wait_for("anneal_requests_waiting", 1.0);
        server.signal(signal);
        let last = loop {
            let line = running.next().expect("the rest");
            if line.get("done").is_some() {
                break line;
            }
        };
        assert_eq!((&last["stop"], &last["usage"]["completion_tokens"]), (&"length".into(), &1500.into()));
        assert_eq!(waiting.next().expect("an answer")["usage"]["completion_tokens"], 3);
        assert_eq!((running.next(), waiting.next()), (None, None));
        assert_eq!(server.code(), Some(0));
        assert!(!server.socket().exists());
    }
}

#[test]
fn what_takes_too_long_to_drain_is_ended() {
    let mut server = Server::start(&["--slots", "1", "--drain", "0.1", "-c", "65536"]);
    let (mut running, mut waiting) = (server.connect(), server.connect());
    let mut request = greedy("red heat", 60_000);
    request["stream"] = true.into();
    running.send(request.to_string().as_bytes());
    running.next().expect("a token");
    waiting.send(greedy("hello", 3).to_string().as_bytes());
    server.wait_for("anneal_requests_waiting", 1.0);
    server.signal("TERM");
    let last = loop {
        let line = running.next().expect("the rest");
        if line.get("done").is_some() {
            break line;
        }
    };
    assert_eq!(last["stop"], "shutdown", "{last}");
    assert_eq!(waiting.next().expect("an answer")["stop"], "shutdown");
    assert_eq!(server.code(), Some(0));
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let mut server = Server::start(&["--slots", "1", "-c", "65536"]);
    let mut running = server.connect();
    let mut request = greedy("red heat", 60_000);
    request["stream"] = true.into();
    running.send(request.to_string().as_bytes());
    running.next().expect("a token");
    server.signal("TERM");
    // The kernel merges two pending signals of the same kind, so the server must have handled the first signal.
    while UnixStream::connect(server.socket()).is_ok() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    server.signal("TERM");
    assert_eq!(server.code(), Some(130));
    assert!(!server.socket().exists());
}

#[test]
fn a_socket_in_use_is_refused_and_one_left_behind_replaced() {
    let mut server = Server::start(&[]);
    let mode = std::fs::metadata(server.socket()).expect("a file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let socket = server.socket();
    let path = socket.to_str().expect("UTF-8");
    let stderr = refused(&["--socket", path], 1);
    assert!(stderr.contains("another program is already listening on this socket"), "{stderr}");
    assert_eq!(server.ask(&greedy("hello", 2))["usage"]["completion_tokens"], 2);

    // A killed server leaves its socket file.
    server.child.kill().expect("a signal");
    server.child.wait().expect("it ends");
    assert!(socket.exists());
    let mut again = command(&[]);
    again.arg("--socket").arg(&socket);
    let other = tempfile::tempdir().expect("a temporary folder");
    let folder = std::mem::replace(&mut server.folder, other);
    let next = Server::with(again, folder);
    assert_eq!(next.ask(&greedy("hello", 2))["usage"]["completion_tokens"], 2);
}

#[test]
fn where_it_cannot_listen_is_said() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let place = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_string();
    std::fs::write(place("a file"), "precious").expect("a file");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = taken.local_addr().map(|address| (taken, address.to_string())).expect("an address");
    let long = place(&"x".repeat(120));
    let cases = [
        (vec!["--socket", &long], 1, "the maximum of 107"),
        (vec!["--listen", &taken.1], 1, "another program uses the port"),
        (vec!["--listen", "0.0.0.0:0"], 2, "a key is needed"),
        (
            vec!["--listen", "nowhere"],
            2,
            "\"nowhere\" is not an IP address with a port\nhint: use an address such as 127.0.0.1:8080",
        ),
        (vec!["--listen", "9090"], 2, "hint: use an address such as 127.0.0.1:9090"),
        (vec!["--slots", "0", "--listen", "127.0.0.1:0"], 2, "--slots 0"),
        (vec!["--slots", "8", "-b", "8", "-ub", "8", "--listen", "127.0.0.1:0"], 2, "too small for 8 slots"),
    ];
    for (arguments, code, expected) in cases {
        let stderr = refused(&arguments, code);
        assert!(stderr.contains(expected), "{arguments:?}: {stderr}");
    }
    let (file, nowhere) = (place("a file"), place("none/a.sock"));
    assert!(refused(&["--socket", &file], 1).contains("is not a socket"));
    assert!(refused(&["--socket", &nowhere], 1).contains("cannot use the folder"));
    assert_eq!(std::fs::read(&file).expect("it is there"), b"precious");
}

#[test]
fn the_default_socket_is_in_a_folder_of_this_users() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut plain = command(&[]);
    plain.env("XDG_RUNTIME_DIR", folder.path());
    let place = folder.path().join("anneal");
    let server = Server::with(plain, folder);
    let mode = |path: &Path| std::fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
    assert_eq!((mode(&place), mode(&place.join("anneal.sock"))), (0o700, 0o600));
    assert_eq!(server.ready["socket"].as_str(), place.join("anneal.sock").to_str());
    let mut without = command(&[]);
    let (code, _, stderr) = parts(&without.env_remove("XDG_RUNTIME_DIR").output().expect("it runs"));
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("--socket PATH"), "{stderr}");
}

#[test]
fn the_configuration_is_printed_and_read() {
    let printed = common::command().args(["serve", "--print-config"]).output().expect("it runs");
    let (code, stdout, stderr) = parts(&printed);
    assert_eq!(code, Some(0), "{stderr}");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let config = folder.path().join("server_config.toml");
    let text = stdout.replace("# slots = 4", "slots = 2").replace("# ctx_size = 4096", "ctx_size = 512");
    std::fs::write(&config, text).expect("a file");
    let server = Server::start(&["--config", config.to_str().expect("UTF-8"), "--slots", "3"]);
    assert_eq!(server.ready["context"], 512);
    // The flag overrides the file.
    assert_eq!(server.metric("anneal_slots"), 3.0);
    std::fs::write(&config, "slotz = 2\n").expect("a file");
    let stderr = refused(&["--config", config.to_str().expect("UTF-8")], 2);
    assert!(stderr.contains("slotz: unknown key\nhint: did you mean slots?"), "{stderr}");
    // The server does not touch a socket on which another process listens.
    let path = folder.path().join("b.sock");
    let _listener = UnixListener::bind(&path).expect("a socket");
    assert!(refused(&["--socket", path.to_str().expect("UTF-8")], 1).contains("another program"));
}
