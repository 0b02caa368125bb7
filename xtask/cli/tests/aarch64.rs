//! Tests of aarch64 on another machine: the CPU guard on CPUs that lack an instruction set, and a whole build, if
//! there is one.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use build_info::BuildInfo;
use gguf::synth::{self, Preset, SynthOptions};
use serde_json::Value;
use toolchain::{SearchPath, Toolchain};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn tools() -> Toolchain {
    toolchain::discover(&SearchPath::live(&root().join("target/anneal/tools")), None)
}

/// Requirements of a portable build, in the format that `vendor/llama-link/build` writes.
const REQUIRED: &str = r#"
#define ANNEAL_GUARD_COUNT 4
#define ANNEAL_GUARD_FEATURES { "crc32", AT_HWCAP, 7 }, { "atomics", AT_HWCAP, 8 }, { "asimdrdm", AT_HWCAP, 12 }, \
    { "asimddp", AT_HWCAP, 20 },
#define ANNEAL_GUARD_USE "the other build"
"#;

#[test]
fn the_guard_stops_on_a_cpu_without_dot_products_and_says_so() {
    let zig = tools().zig.expect("zig is needed: `cargo xtask setup --profile portable-aarch64`");
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("guard_required.h"), REQUIRED).unwrap();
    let program = folder.path().join("program");
    // Compiled without a C library, because making one for another machine takes minutes.
    let output = Command::new(zig.path)
        .args(
            "cc -target aarch64-linux-none -mcpu=generic -O2 -ffreestanding -nostdlib -static -I".split(' '),
        )
        .args([folder.path(), &root().join("xtask/cli/tests/data/aarch64_start.c")])
        .args([&root().join("vendor/llama-link/csrc/guard.c"), Path::new("-o"), &program])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // CPU of the emulator, its name in messages, and the missing instruction set, or none if the program runs.
    let cases = [
        ("cortex-a53", "implementer 0x41, part 0xd03", "atomics asimdrdm asimddp"),
        ("cortex-a72", "implementer 0x41, part 0xd08", "atomics asimdrdm asimddp"),
        ("neoverse-n1", "", ""),
        ("max", "", ""),
    ];
    for (cpu, name, missing) in cases {
        let output = Command::new("qemu-aarch64").args(["-cpu", cpu]).arg(&program).output();
        let output = output.expect("qemu-aarch64 is needed (Debian: qemu-user)");
        let (said, complained) = (text(&output.stdout), text(&output.stderr));
        if missing.is_empty() {
            assert_eq!((output.status.code(), said.as_str()), (Some(0), "main\n"), "{cpu}: {complained}");
            continue;
        }
        assert_eq!((output.status.code(), said.as_str()), (Some(69), ""), "{cpu}: {complained}");
        for words in [name, &format!("missing:  {missing}\n"), "use:      the other build\n"] {
            assert!(complained.contains(words), "{cpu}: {complained}");
        }
    }
}

/// Compares the text that the current aarch64 build generates with that of this machine's own build.
#[test]
#[ignore = "takes `cargo xtask build --profile portable-aarch64`, for which rustup must bring another standard library"]
fn a_build_for_aarch64_gives_the_tokens_of_this_machines_own() {
    let [native, foreign] =
        ["native", "portable-aarch64"].map(|profile| root().join("target/anneal").join(profile));
    let info = BuildInfo::read(&foreign.join("build_info.json")).unwrap();
    assert_eq!((info.target.as_str(), &info.smoke), (toolchain::AARCH64, &None));
    let emulated = info.emulated.clone().expect("what ran it");
    assert!(emulated.emulator.starts_with("qemu-aarch64 ") && emulated.cpu == "neoverse-n1", "{emulated:?}");
    assert!(info.gate.is_some_and(|gate| gate.passed));
    assert_eq!(info.isa_required, ["crc32", "atomics", "asimdrdm", "asimddp"]);
    let audit = info.audit.expect("an audit");
    assert!(audit.not_done.is_some() && audit.glibc <= info.glibc, "{audit:?}");

    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("tiny.gguf");
    synth::write(&model, &SynthOptions::new(Preset::Tiny)).unwrap();
    let emulator = tools().aarch64.expect("qemu-aarch64 with the C library of aarch64");
    let on_cpu = |cpu: &str, arguments: &[&str]| {
        let mut command = Command::new(&emulator.tool.path);
        command.args(["-cpu", cpu, "-L"]).args([&emulator.sysroot, &foreign.join("bin/anneal")]);
        command.args(arguments).output().unwrap()
    };
    let model = model.to_str().unwrap();
    let run = ["run", "-m", model, "-p", "hello", "-n", "16", "--greedy", "--ignore-eos", "--json"];
    let expected = tokens(&Command::new(native.join("bin/anneal")).args(run).output().unwrap());
    assert_eq!(expected.len(), 16);
    for cpu in ["neoverse-n1", "max"] {
        assert_eq!(tokens(&on_cpu(cpu, &run)), expected, "{cpu}");
    }
    let refused = on_cpu("cortex-a53", &["--version"]);
    assert_eq!(refused.status.code(), Some(69));
    assert!(text(&refused.stderr).contains("missing:  atomics asimdrdm asimddp\n"), "{refused:?}");
}

#[track_caller]
fn tokens(output: &Output) -> Vec<i64> {
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    report["tokens"].as_array().unwrap().iter().map(|token| token.as_i64().unwrap()).collect()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
