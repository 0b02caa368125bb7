//! A standard error that is closed, full, or read by nobody is no reason to fail; a standard output that is full is.

mod common;

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{ANNEAL, parts, tiny};

/// Exit code of `executable` run by a shell with `redirection`, and what it wrote to stdout.
fn run(executable: &Path, redirection: &str, arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new("sh")
        .args(["-c", &format!("exec \"$0\" \"$@\" {redirection}")])
        .arg(executable)
        .args(arguments)
        .output()
        .expect("a shell");
    (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn exit_codes_and_output_are_the_same_without_a_stderr() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    // With a damaged record beside it, every run begins with a warning.
    let executable = folder.path().join("anneal");
    std::fs::copy(ANNEAL, &executable).expect("a copy");
    std::fs::write(folder.path().join("build_info.json"), "{").expect("a record");
    let model = tiny().to_str().expect("UTF-8");
    let quantised = folder.path().join("q8.gguf");
    let quantised = quantised.to_str().expect("UTF-8");
    let cases: [(&[&str], i32); 5] = [
        (&["run", "-m", model, "-p", "a", "-n", "2"], 0),
        (&["quantize", model, quantised, "q8_0"], 0),
        (&["run", "-m", "no-such-model.gguf", "-p", "a"], 1),
        (&["run", "-m", model, "-p", "a", "-t", "0"], 2),
        (&["run", "--no-such-flag"], 2),
    ];
    for redirection in ["2>&-", "2>/dev/full"] {
        for (arguments, code) in cases {
            let (found, stdout) = run(&executable, redirection, arguments);
            assert_eq!(found, Some(code), "{arguments:?} {redirection}");
            assert_eq!(
                stdout.is_empty(),
                code != 0 || arguments[0] == "quantize",
                "{arguments:?}: {stdout:?}"
            );
        }
    }
}

#[test]
fn a_reader_of_stderr_that_goes_away_is_no_error() {
    let mut child = common::command()
        .args(["run", "-m", "no-such-model.gguf", "-p", "a"])
        .stderr(Stdio::piped())
        .spawn()
        .expect("the executable runs");
    drop(child.stderr.take());
    assert_eq!(child.wait().expect("it ends").code(), Some(1));
}

#[test]
fn output_that_cannot_be_written_is_named() {
    let model = tiny().to_str().expect("UTF-8");
    let cases: [&[&str]; 6] = [
        &["run", "-m", model, "-p", "a", "-n", "2"],
        &["run", "-m", model, "-p", "a", "-n", "2", "--json"],
        &["bench", "-m", model, "-p", "8", "-n", "0", "-r", "1"],
        &["info"],
        &["--help"],
        &["--version"],
    ];
    for arguments in cases {
        let full = File::options().write(true).open("/dev/full").expect("Linux has one");
        let output = common::command().args(arguments).stdout(full).output().expect("the executable runs");
        let (code, _, stderr) = parts(&output);
        assert_eq!(code, Some(1), "{arguments:?}: {stderr}");
        assert!(stderr.starts_with("error: cannot write") && stderr.contains("No space left"), "{stderr}");
        assert!(!stderr.contains("panicked") && !stderr.contains("mistake"), "{stderr}");
    }
}

/// A pipe of a page, and nobody who reads it for a while: the text is generated meanwhile, and comes whole and in order.
#[test]
#[cfg(target_os = "linux")]
fn decode_does_not_wait_for_a_slow_reader() {
    const UNREAD: Duration = Duration::from_secs(10);
    let arguments =
        ["run", "--greedy", "--ignore-eos", "-t", "1", "-p", "The smith brings", "-n", "1200", "-m"];
    let whole =
        common::anneal(arguments.iter().map(OsStr::new).chain([tiny().as_os_str(), OsStr::new("--json")]));
    let whole: serde_json::Value = serde_json::from_slice(&whole.stdout).expect("one JSON object");
    let expected = whole["text"].as_str().expect("a text");
    assert!(expected.len() > 4096 + 512, "{} bytes fit into the pipe", expected.len());
    let (mut reader, writer) = std::io::pipe().expect("a pipe");
    rustix::pipe::fcntl_setpipe_size(&writer, 4096).expect("a page");
    let child = common::command().args(arguments).arg(tiny()).stdout(writer).stderr(Stdio::piped()).spawn();
    let child = child.expect("the executable runs");
    std::thread::sleep(UNREAD);
    let mut text = String::new();
    reader.read_to_string(&mut text).expect("text");
    assert_eq!(text, format!("{expected}\n"));
    let (code, _, stderr) = parts(&child.wait_with_output().expect("it ends"));
    assert_eq!(code, Some(0), "{stderr}");
    // "decode 1200 tokens 442.48 t/s": from the first to the last.
    let speed = stderr.split("decode 1200 tokens ").nth(1).and_then(|rest| rest.split(' ').next());
    let speed: f64 = speed.expect("a speed").parse().expect("a number");
    let seconds = 1199.0 / speed;
    assert!(seconds < UNREAD.as_secs_f64() * 0.9, "decode took {seconds} s, with the reader: {stderr}");
}
