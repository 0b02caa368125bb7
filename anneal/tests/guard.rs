//! The CPU guard in the executable itself, under qemu-user.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

mod common;

use std::process::Command;

use common::ANNEAL;

/// What this build asks for, as it tells itself.
fn required() -> Vec<String> {
    let (code, stdout, stderr) = common::parts(&common::anneal(["info", "--json"]));
    assert_eq!(code, Some(0), "{stderr}");
    let info: serde_json::Value = serde_json::from_str(&stdout).expect("one JSON object");
    let names = info["isa_required"].as_array().cloned().unwrap_or_default();
    names.iter().filter_map(|name| name.as_str().map(str::to_string)).collect()
}

#[test]
fn an_old_cpu_gets_words_and_not_sigill() {
    let required = required();
    assert!(required.iter().any(|name| name == "avx2"), "this test needs a build for AVX2: {required:?}");
    let output = Command::new("qemu-x86_64").args(["-cpu", "Nehalem", ANNEAL, "--version"]).output();
    let output = output.expect("qemu-x86_64 must be installed (Debian: qemu-user)");
    let (code, stdout, stderr) = common::parts(&output);
    assert_eq!(code, Some(69), "{stderr}");
    assert_eq!(stdout, "");
    assert!(stderr.contains("Nehalem"), "the CPU is not named: {stderr}");
    let missing = stderr.lines().find(|line| line.trim_start().starts_with("missing:"));
    let missing: Vec<&str> = missing.unwrap_or_default().split_whitespace().collect();
    assert!(missing.contains(&"avx2") && !missing.contains(&"sse3"), "{stderr}");
    assert!(stderr.lines().any(|line| line.trim_start().starts_with("use:") && line.len() > 20), "{stderr}");
}

#[test]
fn the_cpu_that_built_it_runs_it() {
    let (code, stdout, _) = common::parts(&common::anneal(["--version"]));
    assert_eq!(code, Some(0));
    assert!(stdout.starts_with("anneal ") && stdout.contains("llama.cpp"), "{stdout}");
}
