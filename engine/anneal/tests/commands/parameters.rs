//! Tests that settings reach llama.cpp. Each setting is visible in llama.cpp's log, counters or mappings.

use std::ffi::OsStr;
use std::io::Read;
use std::path::Path;
use std::process::Stdio;

use crate::common::{anneal, parts, tiny};

/// Returns llama.cpp's log of a short run of `model`.
pub(crate) fn log(model: &Path, arguments: &[&str]) -> String {
    let run = ["run", "--verbose", "-p", "a", "-n", "1", "-c", "256", "-m"].map(OsStr::new);
    let all = run.into_iter().chain([model.as_os_str()]).chain(arguments.iter().map(OsStr::new));
    let (code, _, stderr) = parts(&anneal(all));
    assert_eq!(code, Some(0), "{arguments:?}: {stderr}");
    // llama.cpp pads its columns with spaces.
    stderr.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn llama_cpp_tells_of_what_it_was_given() {
    let cases: [(&[&str], &str); 12] = [
        (&["--load-mode", "none"], "(load_mode = none)"),
        (&["--load-mode", "mmap"], "(load_mode = mmap)"),
        (&["--load-mode", "mlock"], "(load_mode = mlock)"),
        (&["--load-mode", "mmap_mlock"], "(load_mode = mmap+mlock)"),
        (&["--load-mode", "direct_io"], "(load_mode = dio)"),
        (&["-fa", "on"], "flash_attn = enabled"),
        (&["-fa", "off"], "flash_attn = disabled"),
        (&["-fa", "auto"], "flash_attn = auto"),
        (&["-ctk", "q8_0", "-fa", "on"], "K (q8_0)"),
        (&["-ctv", "q5_1", "-fa", "on"], "V (q5_1)"),
        (&["-ctk", "bf16", "-ctv", "f32"], "K (bf16)"),
        (&["-ctk", "bf16", "-ctv", "f32"], "V (f32)"),
    ];
    for (arguments, words) in cases {
        let log = log(tiny(), arguments);
        assert!(log.contains(words), "{arguments:?}: {words:?} is not in llama.cpp's log");
    }
}

#[test]
#[cfg(target_arch = "x86_64")]
fn weights_are_repacked_unless_told_not_to() {
    let model = crate::common::quantised("Q4_0");
    for (arguments, repacked) in [(&[][..], crate::common::repacks_q4_0()), (&["--no-repack"], false)] {
        let log = log(&model, arguments);
        // If the CPU supports both, AMX takes precedence over repacking.
        let found = ["CPU_PANELS", "CPU_REPACK", "AMX"]
            .iter()
            .any(|layout| log.contains(&format!("{layout} model buffer size")));
        assert_eq!(found, repacked, "{arguments:?}");
    }
}

/// Returns the number of threads of a process that generates with `arguments`.
fn threads(arguments: &[&str]) -> usize {
    let mut child = crate::common::command()
        .args(["run", "-p", "a", "-n", "1000000", "-c", "4096", "--ignore-eos", "-m"])
        .arg(tiny())
        .args(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the executable runs");
    // At the first text, the prompt and the first tokens have been evaluated.
    let mut first = [0];
    let read = child.stdout.as_mut().expect("piped").read_exact(&mut first);
    let tasks = std::fs::read_dir(format!("/proc/{}/task", child.id())).map(Iterator::count);
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    read.expect("some text");
    tasks.expect("its threads")
}

#[test]
#[cfg(target_os = "linux")]
fn as_many_threads_run_as_were_asked_for() {
    let one = threads(&["-t", "1", "-tb", "1"]);
    for arguments in [["-t", "3", "-tb", "3"], ["-t", "1", "-tb", "3"], ["-t", "3", "-tb", "1"]] {
        assert_eq!(threads(&arguments) - one, 2, "{arguments:?}");
    }
}

/// Covers builds with and without BLAS.
#[test]
fn blas_threads_are_explained_and_obeyed_where_there_is_blas() {
    let info = |arguments: &[&str]| -> serde_json::Value {
        let all = ["info", "--json", "--explain"].iter().chain(arguments);
        let (code, stdout, stderr) = parts(&anneal(all));
        assert_eq!(code, Some(0), "{arguments:?}: {stderr}");
        serde_json::from_str(&stdout).expect("JSON")
    };
    let setting = |info: &serde_json::Value| {
        let settings = info["settings"].as_array().expect("settings");
        let line = settings.iter().find(|line| line["name"] == "blas-threads").expect("a line");
        (line["value"].as_str().expect("a value").to_string(), line["source"].clone())
    };
    let (default, asked) = (info(&[]), info(&["--blas-threads", "2"]));
    let has_backend = default["backends"].as_array().expect("backends").iter().any(|name| name == "BLAS");
    assert_eq!(default["blas"].is_object(), has_backend, "{}", default["blas"]);
    if has_backend {
        assert_eq!(setting(&default), ("1".to_string(), "default".into()));
        assert_eq!(setting(&asked), ("2".to_string(), "flag".into()));
    } else {
        assert_eq!(setting(&default), ("none in this build".to_string(), "default".into()));
    }
    // The prompt is long enough that BLAS is called if it exists.
    let prompt = "a b c d ".repeat(10);
    for threads in ["0", "1", "2"] {
        let arguments = ["-p", &prompt, "-n", "4", "--greedy", "--ignore-eos", "--blas-threads", threads];
        assert!(!crate::common::on_tiny("run", &arguments).is_empty(), "{threads} threads");
    }
    let (code, _, stderr) = parts(&anneal(["info", "--blas-threads", "100000"]));
    assert_eq!(code, Some(2), "{stderr}");
}
