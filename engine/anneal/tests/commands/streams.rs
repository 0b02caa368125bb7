//! Tests of standard streams: a closed, full or unread standard error does not make a command fail, but a full
//! standard output does.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{ANNEAL, parts, tiny};

/// Runs `executable` in a shell with `redirection`. Returns its exit code and its standard output.
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
    // A damaged record next to the executable makes every run start with a warning.
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
    let mut child = crate::common::command()
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
    let cases: [&[&str]; 7] = [
        &["run", "-m", model, "-p", "a", "-n", "2"],
        &["run", "-m", model, "-p", "a", "-n", "2", "--json"],
        &["bench", "-m", model, "-p", "8", "-n", "0", "-r", "1"],
        &["info"],
        &["tokenize", "-m", model, "-p", "a"],
        &["--help"],
        &["--version"],
    ];
    for arguments in cases {
        let full = File::options().write(true).open("/dev/full").expect("Linux has one");
        let output =
            crate::common::command().args(arguments).stdout(full).output().expect("the executable runs");
        let (code, _, stderr) = parts(&output);
        assert_eq!(code, Some(1), "{arguments:?}: {stderr}");
        assert!(stderr.starts_with("error: cannot write") && stderr.contains("No space left"), "{stderr}");
        assert!(!stderr.contains("panicked") && !stderr.contains("internal error"), "{stderr}");
    }
}

#[test]
fn help_is_wrapped_at_the_width_of_the_terminal() {
    for columns in [60, 80] {
        let mut command = crate::common::command();
        // If no standard stream is a terminal, `COLUMNS` sets the width.
        command.args(["serve", "--help"]).env("COLUMNS", columns.to_string()).stdin(Stdio::null());
        let (code, help, stderr) = parts(&command.output().expect("the executable runs"));
        assert_eq!(code, Some(0), "{stderr}");
        // A word that is longer than the line is not broken.
        let wide =
            help.lines().find(|line| line.chars().count() > columns && line.split_whitespace().count() > 4);
        assert_eq!(wide, None, "{columns} columns");
    }
}

/// Writes to a pipe of one page that is not read for a while. Generation continues, and the whole text arrives in
/// order.
#[test]
#[cfg(target_os = "linux")]
fn decode_does_not_wait_for_a_slow_reader() {
    let (mut reader, writer) = std::io::pipe().expect("a pipe");
    // The smallest pipe is one page, 4 KiB to 64 KiB. The text of 1,200 tokens is longer than 4 KiB.
    rustix::pipe::fcntl_setpipe_size(&writer, 1).expect("a page");
    let page = rustix::pipe::fcntl_getpipe_size(&writer).expect("its size");
    let count = 1_200 * page / 4_096;
    let (n_predict, n_ctx) = (count.to_string(), (count + 256).to_string());
    let arguments =
        ["run", "--greedy", "--ignore-eos", "-t", "1", "-p", "The smith brings", "-n", &n_predict];
    let arguments = [&arguments[..], &["-c", &n_ctx, "-m"]].concat();
    let whole = crate::common::anneal(
        arguments.iter().map(OsStr::new).chain([tiny().as_os_str(), OsStr::new("--json")]),
    );
    let whole: serde_json::Value = serde_json::from_slice(&whole.stdout).expect("one JSON object");
    let expected = whole["text"].as_str().expect("a text");
    assert!(expected.len() > page + 512, "{} bytes fit into the pipe", expected.len());
    let child =
        crate::common::command().args(&arguments).arg(tiny()).stdout(writer).stderr(Stdio::piped()).spawn();
    let child = child.expect("the executable runs");
    // Waits until the process has been idle for as long as it worked, because the decode time depends on the
    // machine's load.
    let begin = Instant::now();
    let (mut used, mut worked) = (0.0, Duration::from_secs(2));
    while begin.elapsed() < 2 * worked {
        std::thread::sleep(Duration::from_millis(50));
        let now = host::process::cpu_seconds(child.id()).unwrap_or_default();
        if now > used {
            (used, worked) = (now, worked.max(begin.elapsed()));
        }
    }
    let unread = begin.elapsed();
    let mut text = String::new();
    reader.read_to_string(&mut text).expect("text");
    assert_eq!(text, format!("{expected}\n"));
    let (code, _, stderr) = parts(&child.wait_with_output().expect("it ends"));
    assert_eq!(code, Some(0), "{stderr}");
    // The speed in "decode 1200 tokens 442.48 t/s" covers the time from the first to the last token.
    let speed =
        stderr.split(&format!("decode {count} tokens ")).nth(1).and_then(|rest| rest.split(' ').next());
    let speed: f64 = speed.expect("a speed").parse().expect("a number");
    let seconds = (count - 1) as f64 / speed;
    assert!(seconds < unread.as_secs_f64() * 0.9, "decode waited for the reader ({seconds} s): {stderr}");
}
