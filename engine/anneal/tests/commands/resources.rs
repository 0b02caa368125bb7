//! Tests of resources that disappear at run time: memory, and the file that the weights are mapped from.
#![cfg(target_os = "linux")]

use std::fs::{self, File};
use std::io::Read;
use std::process::{Command, Stdio};

use crate::common::{ANNEAL, parts, tiny};

#[test]
fn a_model_that_becomes_shorter_while_it_is_mapped() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let model = folder.path().join("mapped.gguf");
    fs::copy(tiny(), &model).expect("a copy");
    let mut child = crate::common::command()
        .args(["run", "-p", "a", "-n", "-1", "-c", "100096", "--ignore-eos", "--load-mode", "mmap"])
        .args(["--no-repack", "-m"])
        .arg(&model)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the executable runs");
    let mut first = [0];
    child.stdout.as_mut().expect("piped").read_exact(&mut first).expect("some text");
    File::options().write(true).open(&model).and_then(|file| file.set_len(1_000)).expect("a shorter file");
    let (code, _, stderr) = parts(&child.wait_with_output().expect("it ends"));
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("the file became shorter") && stderr.contains("--load-mode none"), "{stderr}");
}

#[test]
fn too_little_address_space_is_told_whatever_runs_out_of_it() {
    let limited = |kilobytes: u32, arguments: &[&str]| {
        let script = format!("ulimit -v {kilobytes}; exec \"$0\" \"$@\"");
        let mut command = Command::new("sh");
        command.env("ANNEAL_STATE_DIR", tiny().with_file_name("state"));
        parts(&command.args(["-c", &script, ANNEAL]).args(arguments).output().expect("a shell"))
    };
    // The minimum memory that the program needs to start depends on the build.
    let starts =
        (20_000..400_000).step_by(2_000).find(|limit| limited(*limit, &["run", "--help"]).0 == Some(0));
    let starts = starts.expect("it starts within 400 MB");
    let run = ["run", "-n", "2", "-p", "hello", "-m", tiny().to_str().expect("UTF-8")];
    let (mut failed, mut aborted) = (0, 0);
    for limit in (starts..starts + 100_000).step_by(5_000) {
        let (code, _, stderr) = limited(limit, &run);
        if code != Some(0) {
            failed += 1;
            // Rust's standard library aborts if an allocation of a few kB fails. These aborts are rare: of 240
            // memory limits at intervals of 250 kB, one caused an abort.
            if code.is_none() && stderr.contains("memory allocation of") {
                aborted += 1;
                continue;
            }
            assert_eq!(code, Some(1), "{limit} kB: {stderr}");
            // With almost no memory, the handler for ctrl-C cannot be installed, and a warning is printed. ggml's AMX
            // buffers write directly to stderr.
            let prelude = ["warning: ", "hint: ", "ggml_backend_amx_buffer"];
            let mut lines = stderr.lines();
            let error =
                lines.find(|line| !prelude.iter().any(|start| line.starts_with(start))).unwrap_or_default();
            let told = error.starts_with("error: ") && stderr.contains("memory");
            assert!(told && stderr.to_lowercase().contains("lower -c"), "{limit} kB: {stderr}");
        }
    }
    assert!(failed > 3, "only {failed} runs failed");
    assert!(aborted < 2, "{aborted} of {failed} failed runs ended without advice");
}
