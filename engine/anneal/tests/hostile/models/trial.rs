//! Tests of a file that passes validation but makes llama.cpp abort, in a server, a command and the library.
//!
//! The set of such files changes with each new check and each new llama.cpp. Therefore, these tests use a good file.
//! An environment variable names this file, and makes the trial's child process fail an assertion. The fuzz test
//! finds real files.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::client::{PATIENCE, Server, greedy};
use crate::common::{self, ANNEAL, parts, tiny};

/// Environment variable that the child process reads; see `engine_core::trial::worker`.
const ABORTS: &str = "ANNEAL_TEST_TRIAL_ABORTS";
const ASSERTION: &str =
    "failed an assertion of llama.cpp: llama.cpp/src/test.cpp:1: GGML_ASSERT(false) failed";
const KNOWN: &str = "(found at an earlier load)";

/// Writes a good model, which the trial treats as a bad model, to `folder`.
fn bad(folder: &Path) -> PathBuf {
    let path = folder.join("bad.gguf");
    std::fs::copy(tiny(), &path).expect("a copy");
    path
}

fn of(model: &str) -> Value {
    let mut request = greedy("hello", 3);
    request["model"] = model.into();
    request
}

fn message(answer: &Value) -> String {
    assert_eq!(answer["error"]["code"], "model_unavailable", "{answer}");
    answer["error"]["message"].as_str().expect("a text").to_string()
}

#[test]
fn a_server_refuses_one_model_and_goes_on_with_the_other() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    bad(folder.path());
    std::os::unix::fs::symlink(tiny(), folder.path().join("good.gguf")).expect("a link");
    let config = folder.path().join("server_config.toml");
    let text =
        "slots = 2\nctx_size = 512\n[models.good]\npath = \"good.gguf\"\n[models.bad]\npath = \"bad.gguf\"\n";
    std::fs::write(&config, text).expect("written");
    let mut command = common::command();
    command.args(["serve", "--json", "-t", "1", "--config"]).arg(&config);
    command.arg("--socket").arg(folder.path().join("a.sock"));
    command.env("ANNEAL_STATE_DIR", folder.path().join("state")).env(ABORTS, "bad.gguf");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut server = Server::with(command, folder);

    // This answer is being generated while the other model is tried.
    let mut long = of("good");
    (long["max_tokens"], long["stream"]) = (200.into(), true.into());
    let mut running = server.connect();
    running.send(long.to_string().as_bytes());
    running.next().expect("a token");
    let (status, answer) = server.post("/v1/completions", &of("bad"));
    assert_eq!(status, 503, "{answer}");
    let first = message(&answer);
    assert!(first.contains(ASSERTION) && first.contains("bad.gguf") && !first.contains(KNOWN), "{first}");
    let inside = server.folder.path().to_str().expect("a folder");
    assert!(!first.contains(inside), "a client is told the path of the server's files: {first}");
    let last = loop {
        let line = running.next().expect("the rest");
        if line.get("done").is_some() || line.get("error").is_some() {
            break line;
        }
    };
    assert_eq!(last["usage"]["completion_tokens"], 200, "{last}");

    // The verdict is now known, so no child process is started.
    let begin = Instant::now();
    while !message(&server.ask(&of("bad"))).contains(KNOWN) {
        assert!(begin.elapsed() < PATIENCE, "the model is tried again on each request");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(server.ask(&of("good"))["usage"]["completion_tokens"], 3);
    assert!(server.child.try_wait().expect("a child").is_none(), "the server ended");
}

#[test]
fn a_command_says_what_failed_and_what_to_do() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (path, state) = (bad(folder.path()), folder.path().join("state"));
    let run = |command: &[&str]| {
        let mut run = common::command();
        run.args(command).arg(&path).env("ANNEAL_STATE_DIR", &state).env(ABORTS, "bad.gguf");
        parts(&run.output().expect("the executable runs"))
    };
    let expected = format!("error: cannot load {}: its trial load {ASSERTION}", path.display());
    for (number, command) in [
        &["run", "-p", "a", "-n", "1", "-m"][..],
        &["run", "-p", "a", "-n", "1", "-m"],
        &["bench", "-r", "1", "-p", "8", "-n", "1", "-m"],
        &["info", "--placement", "-m"],
        &["run", "-p", "a", "-n", "1", "-m", tiny().to_str().expect("UTF-8"), "--draft-model"],
    ]
    .iter()
    .enumerate()
    {
        let (code, _, stderr) = run(command);
        assert_eq!(code, Some(1), "{command:?}: {stderr}");
        assert!(stderr.contains(&expected) && stderr.contains("\nhint: "), "{command:?}: {stderr}");
        assert_eq!(stderr.contains(KNOWN), number > 0, "{command:?}: {stderr}");
    }
    // A damaged verdict is ignored. A file whose modification time has changed is treated as a new file.
    let verdict = || {
        let mut entries = std::fs::read_dir(state.join("trials")).expect("verdicts").flatten();
        entries.find(|entry| std::fs::read_to_string(entry.path()).is_ok_and(|text| text.contains("died")))
    };
    let first = verdict().expect("a verdict").path();
    std::fs::write(&first, "{").expect("written");
    assert!(!run(&["run", "-p", "a", "-n", "1", "-m"]).2.contains(KNOWN));
    let file = std::fs::File::options().append(true).open(&path).expect("the model");
    file.set_modified(std::time::SystemTime::now()).expect("touched");
    assert!(!run(&["run", "-p", "a", "-n", "1", "-m"]).2.contains(KNOWN));
    // A missing folder for verdicts is not an error.
    let mut good = common::command();
    good.args(["run", "-p", "a", "-n", "1", "-m"]).arg(tiny()).env("ANNEAL_STATE_DIR", "/proc/none");
    let (code, _, stderr) = parts(&good.output().expect("the executable runs"));
    assert_eq!(code, Some(0), "{stderr}");
}

/// Environment variable for a separate process with its own state folder. The variable contains the program for
/// trials, and the model.
const LIBRARY: &str = "ANNEAL_TEST_TRIAL_LIBRARY";

#[test]
fn the_library_tries_a_model_with_the_program_that_it_is_given() {
    const NAME: &str = "models::trial::the_library_tries_a_model_with_the_program_that_it_is_given";
    if let Some(folder) = std::env::var_os(LIBRARY).map(PathBuf::from) {
        let options = engine::Options { trial_program: Some(folder.join("program")), ..Default::default() };
        let why = engine::Model::load(folder.join("bad.gguf"), &options).expect_err("its trial ends");
        assert!(matches!(why, engine::Error::Trial { is_known: false, .. }), "{why}");
        let missing = engine::Options { trial_program: Some(folder.join("none")), ..Default::default() };
        let why = engine::Model::load(folder.join("bad.gguf"), &missing).expect_err("there is no program");
        assert!(why.to_string().contains("could not be started"), "{why}");
        engine::Model::load(folder.join("bad.gguf"), &engine::Options::default())
            .expect("no trial, a good model");
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    bad(folder.path());
    let program = folder.path().join("program");
    std::fs::write(&program, format!("#!/bin/sh\n{ABORTS}=bad.gguf exec '{ANNEAL}' \"$@\"\n"))
        .expect("written");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    std::fs::set_permissions(&program, mode).expect("a program");
    let this = std::env::current_exe().expect("this program");
    let mut child = Command::new(this);
    child
        .args(["--exact", NAME])
        .env(LIBRARY, folder.path())
        .env("ANNEAL_STATE_DIR", folder.path().join("state"));
    let (code, stdout, stderr) = parts(&child.output().expect("this program runs"));
    assert_eq!(code, Some(0), "{stdout}{stderr}");
}
