//! Tests of texts that would control the reader's terminal. The texts come from tokens, model files and servers.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::json;

use crate::common::{self, parts, tiny, with_text};

/// Text that sets a window's title, clears the screen with a C1 control character, deletes a character, and reverses
/// the text after it.
const EVIL: &str = "\u{1b}]0;owned\u{7}\u{9b}2J\u{7f}\u{202e}end";

/// Grammar that makes the model write [`EVIL`].
const GRAMMAR: &str = r#"root ::= "\x1b]0;owned\x07\x9b2J\x7f\u202Eend""#;

/// Returns the output of `command` when its stdout is a terminal.
fn on_terminal(command: &mut Command) -> String {
    let terminal =
        openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("a terminal");
    grantpt(&terminal).and_then(|()| unlockpt(&terminal)).expect("its other end");
    let name = ptsname(&terminal, Vec::new()).expect("its name").into_string().expect("a path");
    let end = File::options().read(true).write(true).open(name).expect("its other end");
    let mut child = command.stdout(end).stderr(Stdio::null()).spawn().expect("the executable runs");
    // The command also has this end of the terminal open, and must close it.
    command.stdout(Stdio::null());
    let (mut terminal, mut shown, mut part) = (File::from(terminal), Vec::new(), [0; 4096]);
    // An error means the end of the output: no process holds the other end of the terminal open.
    while let Ok(count @ 1..) = terminal.read(&mut part) {
        shown.extend_from_slice(&part[..count]);
    }
    assert!(child.wait().expect("a child").success(), "{}", String::from_utf8_lossy(&shown));
    String::from_utf8(shown).expect("UTF-8")
}

/// Fails if `shown` contains anything that controls a terminal.
fn assert_harmless(shown: &str) {
    let steers =
        |c: char| (c.is_control() && !"\n\r\t".contains(c)) || ('\u{202a}'..='\u{202e}').contains(&c);
    assert!(!shown.contains(steers), "{shown:?}");
}

fn generating(command: &str) -> Command {
    let mut run = common::command();
    run.args([command, "-t", "1", "--grammar", GRAMMAR, "-n", "40", "-m"]).arg(tiny());
    run.stdin(Stdio::null());
    run
}

#[test]
fn a_terminal_is_not_steered_by_tokens() {
    let run = || {
        let mut run = generating("run");
        run.args(["-p", "a"]);
        run
    };
    let shown = on_terminal(&mut run());
    assert_harmless(&shown);
    assert!(
        shown.contains("\\u{1b}]0;owned") && shown.contains("\\u{9b}2J") && shown.contains("end"),
        "{shown:?}"
    );
    let shown = on_terminal(run().arg("--json"));
    assert_harmless(&shown);
    assert!(shown.contains("owned"), "{shown:?}");
    // A pipe receives the bytes unchanged.
    let (code, stdout, stderr) = parts(&run().output().expect("it runs"));
    assert_eq!((code, stdout.trim_end_matches('\n')), (Some(0), EVIL), "{stderr}");
}

#[test]
fn a_terminal_is_not_steered_by_a_conversation() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let typed = folder.path().join("typed");
    std::fs::write(&typed, "hello\n").expect("written");
    let chat = || {
        let mut chat = generating("chat");
        chat.args(["--chat-template", "chatml"]).stdin(File::open(&typed).expect("it is there"));
        chat
    };
    let shown = on_terminal(&mut chat());
    assert_harmless(&shown);
    assert!(shown.contains("\\u{1b}]0;owned"), "{shown:?}");
    let (code, stdout, stderr) = parts(&chat().output().expect("it runs"));
    assert_eq!((code, stdout.trim_end_matches('\n')), (Some(0), EVIL), "{stderr}");
}

#[test]
fn a_terminal_is_not_steered_by_a_models_file() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let model = folder.path().join(format!("{EVIL}.gguf"));
    with_text(tiny(), &model, &[("general.description", EVIL), ("general.basename", EVIL)]);
    let model = model.to_str().expect("UTF-8");
    assert_harmless(&on_terminal(common::command().args(["info", "-m", model])));
    assert_harmless(&on_terminal(common::command().args(["info", "--json", "-m", model])));
    let bench = ["bench", "-t", "1", "-p", "4", "-n", "0", "-r", "1", "-o", "json", "-m", model];
    assert_harmless(&on_terminal(common::command().args(bench)));
    // llama.cpp prints the metadata.
    let (code, _, stderr) =
        parts(&common::anneal(["run", "--verbose", "-p", "a", "-n", "1", "-t", "1", "-m", model]));
    assert!(code == Some(0) && stderr.contains("general.basename"), "{stderr}");
    assert_harmless(&stderr);
    let (code, _, stderr) = parts(&common::anneal(["run", "-p", "a", "-m", &format!("{model}.none")]));
    assert_eq!(code, Some(1), "{stderr}");
    assert_harmless(&stderr);
}

#[test]
fn a_terminal_is_not_steered_by_a_server() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let socket = folder.path().join("a.sock");
    let listener = UnixListener::bind(&socket).expect("bound");
    let model = json!({ "id": EVIL, "state": EVIL, "description": EVIL, "slots": [] });
    let status = json!({ "status": EVIL, "version": EVIL, "models": [model.clone(), model] }).to_string();
    let refusal = json!({ "error": { "code": "failed", "message": EVIL } }).to_string();
    // Three commands send two requests each, and a fourth command sends one.
    let answers = std::iter::repeat_n(("200 OK", status), 6).chain([("500 Failed", refusal)]);
    let server = std::thread::spawn(move || {
        for (status, body) in answers {
            let (mut stream, _) = listener.accept().expect("a client");
            let mut request = [0; 4096];
            let _ = stream.read(&mut request).expect("a request");
            let head =
                format!("HTTP/1.1 {status}\r\nContent-Type: application/json\r\nConnection: close\r\n");
            write!(stream, "{head}Content-Length: {}\r\n\r\n{body}", body.len()).expect("answered");
        }
    });
    let top = |more: &[&str]| {
        let mut top = common::command();
        top.arg("top").arg(&socket).args(["--once", "--interval", "0.1"]).args(more);
        top
    };
    for more in [&[][..], &["--json"]] {
        let shown = on_terminal(&mut top(more));
        assert_harmless(&shown);
        assert!(shown.contains("owned"), "{shown:?}");
    }
    let (code, stdout, _) = parts(&top(&[]).output().expect("it runs"));
    assert_eq!(code, Some(0));
    assert_harmless(&stdout);
    let (code, _, stderr) = parts(&top(&[]).output().expect("it runs"));
    assert!(code == Some(1) && stderr.contains("owned"), "{stderr}");
    assert_harmless(&stderr);
    server.join().expect("it answered all");
}
