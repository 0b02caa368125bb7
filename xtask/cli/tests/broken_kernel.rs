//! Test that the gate detects a kernel that was broken on purpose.
//!
//! The native build must exist, as after `cargo xtask test`. The test compiles one object from a patched copy of its
//! source with the build's own command, archives it with the existing objects, and links an engine with the archive.
#![cfg(target_arch = "x86_64")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Patch that multiplies Q6_K's dot product by 1.1.
const PATCH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/wrong-kernel.patch");
/// Source file that the patch changes.
const SOURCE: &str = "ggml/src/ggml-cpu/arch/x86/quants.c";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

#[track_caller]
fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}\n{}", String::from_utf8_lossy(&output.stderr));
    output
}

fn json(path: &Path) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Returns the output path in a compiler's command.
fn output_of(words: &[String]) -> String {
    let at = words.iter().position(|word| word == "-o").expect("a command without -o");
    words[at + 1].clone()
}

/// Compiles the patched source. Returns the objects of ggml-cpu, with the broken object instead of the original.
fn broken_objects(build: &Path, scratch: &Path) -> Vec<String> {
    let database = json(&build.join("cmake/compile_commands.json"));
    let mut objects = Vec::new();
    for entry in database.as_array().unwrap() {
        let file = entry["file"].as_str().unwrap();
        let mut words = shlex::split(entry["command"].as_str().unwrap()).unwrap();
        let object = output_of(&words);
        if !object.contains("ggml-cpu.dir") {
            continue;
        }
        if !file.ends_with(SOURCE) {
            objects.push(object);
            continue;
        }
        let (source, broken) = (scratch.join(SOURCE), scratch.join("quants.c.o"));
        std::fs::create_dir_all(source.parent().unwrap()).unwrap();
        std::fs::copy(file, &source).unwrap();
        // Prevents git from finding a repository around the folder. Inside a repository, git would skip the patch
        // silently.
        run(Command::new("git")
            .args(["apply", PATCH])
            .current_dir(scratch)
            .env("GIT_CEILING_DIRECTORIES", scratch.parent().unwrap()));
        let broken = broken.to_str().unwrap().to_string();
        for word in &mut words {
            if *word == object {
                *word = broken.clone();
            } else if word == file {
                *word = source.to_str().unwrap().to_string();
            }
        }
        // The file includes headers from its own folder.
        words.push(format!("-I{}", Path::new(file).parent().unwrap().display()));
        run(Command::new(&words[0]).args(&words[1..]).current_dir(build.join("cmake")));
        objects.push(broken);
    }
    assert!(objects.iter().any(|object| Path::new(object).starts_with(scratch)), "{SOURCE} was not compiled");
    objects
}

/// Links an engine with the broken kernel.
fn broken_engine(build: &Path, scratch: &Path) -> PathBuf {
    let objects = broken_objects(build, scratch);
    let prefix = scratch.join("prefix");
    run(Command::new("cp").arg("-a").arg(build.join("prefix")).arg(&prefix));
    let archive = prefix.join("lib/libggml-cpu.a");
    std::fs::remove_file(&archive).unwrap();
    let plan = json(&build.join("plan.json"));
    let ar = plan["definitions"]["CMAKE_AR"].as_str().unwrap_or("ar");
    run(Command::new(ar).arg("qcs").arg(&archive).args(objects).current_dir(build.join("cmake")));
    let engine = scratch.join("anneal");
    run(Command::new(env!("CARGO_BIN_EXE_xtask")).arg("link").arg(&prefix).arg("--out").arg(&engine));
    engine
}

#[test]
fn the_gate_catches_a_broken_kernel_and_the_good_build_stays_current() {
    let link = root().join("target/anneal/native");
    let build = std::fs::canonicalize(&link).expect("the native build is missing: run `cargo xtask test`");
    let scratch = tempfile::tempdir().unwrap();
    let engine = broken_engine(&build, scratch.path());

    // The broken kernel is llama.cpp's, so Anneal's own kernels must not replace it.
    let xtask = |args: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_xtask")).args(args).env("ANNEAL_KERNELS", "ggml").output().unwrap()
    };
    let output = xtask(&["gate", "--json", engine.to_str().unwrap()]);
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("llama, flash attention off, decode: mean KL divergence"), "{message}");
    let gate: build_info::Gate = serde_json::from_slice(&output.stdout).unwrap();
    // Prefill uses other kernels, which are intact. If weights are repacked for AMX, some decode cases of the gate
    // use other kernels too: those with flash attention.
    let required = &json(&build.join("build_info.json"))["isa_required"];
    let amx = required.as_array().unwrap().iter().any(|name| name == "amx_int8");
    for case in &gate.cases {
        let hit = case.mode == build_info::gate::Mode::Decode;
        if hit && amx && case.flash_attention {
            continue;
        }
        assert_eq!(case.passes(&gate.limits), !hit, "{case}: {:e}", case.mean_kld);
    }

    let good = xtask(&["gate", "--profile", "native"]);
    assert!(good.status.success(), "{}", String::from_utf8_lossy(&good.stderr));
    assert_eq!(std::fs::canonicalize(&link).unwrap(), build);
}
