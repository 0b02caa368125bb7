//! Tests of a build with kernel libraries next to the program. The tests run the program on emulated CPUs, in other
//! folders, and with wrong libraries. `cargo xtask ci` makes the build beforehand.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use build_info::BuildInfo;
use build_info::audit::Rule;
use gguf::synth::{self, Preset, SynthOptions};
use serde_json::Value;

const PROFILE: &str = "universal-few";

/// Returns the current build. Fails if the build is missing, because the tests would check nothing.
#[track_caller]
fn build() -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/anneal").join(PROFILE);
    assert!(
        folder.join("bin/anneal").is_file(),
        "there is no {PROFILE} build: run `cargo xtask test`, or `cargo xtask build --profile {PROFILE}`"
    );
    std::fs::canonicalize(folder).unwrap()
}

/// Copies the build into a folder whose name has a space, as an archive would contain it.
fn unpacked() -> (tempfile::TempDir, PathBuf) {
    let parent = tempfile::tempdir().unwrap();
    let (from, to) = (build(), parent.path().join("an archive"));
    for folder in ["bin", "lib"] {
        std::fs::create_dir_all(to.join(folder)).unwrap();
        for entry in std::fs::read_dir(from.join(folder)).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), to.join(folder).join(entry.file_name())).unwrap();
        }
    }
    std::fs::copy(from.join("build_info.json"), to.join("build_info.json")).unwrap();
    (parent, to)
}

fn tiny(folder: &Path) -> String {
    let model = folder.join("tiny.gguf");
    synth::write(&model, &SynthOptions::new(Preset::Tiny)).unwrap();
    model.to_str().unwrap().to_string()
}

fn on_cpu(cpu: &str, program: &Path, args: &[&str]) -> Output {
    let mut command = Command::new("qemu-x86_64");
    command
        .args(["-cpu", cpu])
        .arg(program)
        .args(args)
        .output()
        .expect("qemu-x86_64 is needed (Debian: qemu-user)")
}

#[track_caller]
fn json(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_str(&text).unwrap()
}

fn info(program: &Path) -> Value {
    json(&Command::new(program).args(["info", "--json"]).output().unwrap())
}

#[test]
fn each_cpu_gets_the_best_kernels_that_it_runs_and_the_same_tokens() {
    let (parent, archive) = unpacked();
    let (program, model) = (archive.join("bin/anneal"), tiny(parent.path()));
    let run = ["run", "-m", &model, "-p", "The smith brings the steel", "-n", "12", "--greedy", "--json"];
    let mut tokens = Vec::new();
    // qemu 7.2 does not emulate AVX-512, and its CPUs report no AVX-512.
    for (cpu, kernels) in [
        ("Nehalem", "x64"),
        ("SandyBridge", "sandybridge"),
        ("Haswell", "haswell"),
        ("Skylake-Server", "haswell"),
    ] {
        let told = json(&on_cpu(cpu, &program, &["info", "--json"]));
        assert_eq!(told["kernels"]["variant"], kernels, "{cpu}: {}", told["kernels"]);
        let report = json(&on_cpu(cpu, &program, &run));
        assert_eq!(report["tokens"].as_array().map(Vec::len), Some(12), "{cpu}: {report}");
        tokens.push((cpu, report["tokens"].clone()));
    }
    assert!(tokens.windows(2).all(|pair| pair[0].1 == pair[1].1), "{tokens:?}");
}

#[test]
fn kernels_come_from_beside_the_program_and_from_nowhere_else() {
    let (parent, archive) = unpacked();
    let (program, model) = (archive.join("bin/anneal"), tiny(parent.path()));
    // By default, ggml would load libraries from the current folder.
    let elsewhere = parent.path().join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    for name in ["libggml-cpu-haswell.so", "libggml-cpu-x64.so", "libggml-cpu.so"] {
        std::fs::write(elsewhere.join(name), "not a library").unwrap();
    }
    let run = |program: &Path| {
        let args = ["run", "-m", &model, "-p", "hello", "-n", "2", "--greedy"];
        Command::new(program).args(args).current_dir(&elsewhere).output().unwrap()
    };
    assert!(run(&program).status.success());
    // The program runs through a symbolic link, as in an installation.
    let link = parent.path().join("anneal");
    std::os::unix::fs::symlink(&program, &link).unwrap();
    assert!(run(&link).status.success());
    std::fs::remove_dir_all(archive.join("lib")).unwrap();
    let output = run(&program);
    assert_eq!(output.status.code(), Some(69));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("cannot use the kernels in") && said.contains("an archive/lib"), "{said}");
}

/// ggml's own search loads any library with the name of a backend, and the loader then runs the library's
/// constructors.
#[test]
fn a_library_in_the_current_folder_is_not_run() {
    let anneal = build().join("bin/anneal");
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("hostile.c");
    let code = "#include <stdio.h>\n__attribute__((constructor)) static void run(void) { fclose(fopen(\"it-ran\", \"w\")); }\n";
    std::fs::write(&source, code).unwrap();
    let library = folder.path().join("libggml-cuda.so");
    let compiled =
        Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status().unwrap();
    assert!(compiled.success());
    for name in ["libggml-blas.so", "libggml-rpc.so", "libggml-cpu-zzz.so", "libggml-cpu.so"] {
        std::fs::copy(&library, folder.path().join(name)).unwrap();
    }
    let model = tiny(folder.path());
    for args in
        [&["info"][..], &["info", "--json"], &["run", "-m", &model, "-p", "hello", "-n", "2", "--greedy"]]
    {
        let output = Command::new(&anneal).args(args).current_dir(folder.path()).output().unwrap();
        assert!(output.status.success(), "{args:?}: {output:?}");
        assert!(!folder.path().join("it-ran").exists(), "{args:?} ran a library of the current folder");
    }
}

#[test]
fn other_kernels_can_be_asked_for() {
    let program = build().join("bin/anneal");
    let told = info(&program);
    let names: Vec<&str> =
        told["kernels"]["all"].as_array().unwrap().iter().filter_map(|one| one["name"].as_str()).collect();
    assert_eq!(names.iter().collect::<std::collections::BTreeSet<_>>().len(), 3, "{names:?}");
    let with = |name: &str| {
        Command::new(&program).args(["info", "--json"]).env("ANNEAL_CPU_VARIANT", name).output().unwrap()
    };
    assert_eq!(json(&with("x64"))["kernels"]["variant"], "x64");
    let model = tempfile::tempdir().unwrap();
    let model = tiny(model.path());
    let args = ["run", "-m", &model, "-p", "hello", "-n", "2", "--cpu-variant", "pentium"];
    let output = Command::new(&program).args(args).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("the build has no kernels of this name") && said.contains("x64"), "{said}");
}

#[test]
fn a_damaged_library_is_named() {
    let (parent, archive) = unpacked();
    let model = tiny(parent.path());
    for name in ["x64", "sandybridge", "haswell"] {
        std::fs::write(archive.join(format!("lib/libggml-cpu-{name}.so")), "cut off").unwrap();
    }
    let args = ["run", "-m", &model, "-p", "hello", "-n", "2"];
    let output = Command::new(archive.join("bin/anneal")).args(args).output().unwrap();
    assert_eq!(output.status.code(), Some(69));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("libggml-cpu-"), "{said}");
}

#[test]
fn a_build_without_its_record_chooses_by_ggmls_rank() {
    let (_parent, archive) = unpacked();
    std::fs::remove_file(archive.join("build_info.json")).unwrap();
    let program = archive.join("bin/anneal");
    let told = json(&on_cpu("SandyBridge", &program, &["info", "--json"]));
    assert_eq!(told["kernels"]["variant"], "sandybridge", "{}", told["kernels"]);
}

#[test]
fn the_program_is_for_any_cpu_and_each_library_for_its_own() {
    let folder = build();
    let info = BuildInfo::read(&folder.join("build_info.json")).unwrap();
    assert!(info.reproducible && info.isa_required.is_empty(), "{:?}", info.isa_required);
    let haswell = info.cpu_variants.iter().find(|variant| variant.name == "haswell").unwrap();
    assert_eq!(haswell.requires, ["avx", "avx2", "bmi2", "f16c", "fma", "sse4_2"]);
    let audit = info.audit.unwrap();
    assert_eq!(audit.rule, Rule::Universal);
    // Counts the program and three libraries.
    assert_eq!(audit.files.len(), 4, "{:?}", audit.files);
    let (needs, floor) = (audit.glibc.unwrap(), info.glibc.unwrap());
    assert!(needs <= floor, "needs glibc {needs}, meant for {floor}");
    // Replace a library with another variant's library, which the rule must reject.
    let (_parent, archive) = unpacked();
    std::fs::copy(archive.join("lib/libggml-cpu-haswell.so"), archive.join("lib/libggml-cpu-x64.so"))
        .unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(["audit", archive.to_str().unwrap()])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("libggml-cpu-x64.so is not portable"), "{said}");
}
