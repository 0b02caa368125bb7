//! Test of the CPU guard in the executable itself, with qemu-user.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

use std::process::Command;

use crate::common::ANNEAL;

/// Returns a CPU model of qemu that lacks an instruction set of this build, and the name of the instruction set.
fn older_cpu() -> Option<(&'static str, &'static str)> {
    let asks = |name: &str| crate::common::isa_required().iter().any(|required| required == name);
    match (asks("avx2"), asks("sse4_2")) {
        (true, _) => Some(("Nehalem", "avx2")),
        (false, true) => Some(("Conroe", "sse4_2")),
        (false, false) => None,
    }
}

#[test]
fn an_old_cpu_gets_words_and_not_sigill() {
    let Some((cpu, lacks)) = older_cpu() else {
        return skipped::because("this build runs on every x86-64 CPU");
    };
    let output = Command::new("qemu-x86_64").args(["-cpu", cpu, ANNEAL, "--version"]).output();
    let output = match output {
        Ok(output) => output,
        Err(_) => return skipped::for_want_of("qemu-x86_64", "install qemu-user"),
    };
    let (code, stdout, stderr) = crate::common::parts(&output);
    assert_eq!(code, Some(69), "{stderr}");
    assert_eq!(stdout, "");
    assert!(stderr.contains(cpu), "the CPU is not named: {stderr}");
    let missing = stderr.lines().find(|line| line.trim_start().starts_with("missing:"));
    let missing: Vec<&str> = missing.unwrap_or_default().split_whitespace().collect();
    assert!(missing.contains(&lacks) && !missing.contains(&"sse3"), "{stderr}");
    assert!(stderr.lines().any(|line| line.trim_start().starts_with("use:") && line.len() > 20), "{stderr}");
}

#[test]
fn the_cpu_that_built_it_runs_it() {
    let (code, stdout, _) = crate::common::parts(&crate::common::anneal(["--version"]));
    assert_eq!(code, Some(0));
    assert!(stdout.starts_with("anneal ") && stdout.contains("llama.cpp"), "{stdout}");
}
