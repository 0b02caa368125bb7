//! Tests of real builds, which `cargo xtask ci` makes beforehand. They check the guarantees of `native` on the
//! program itself.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use build_info::BuildInfo;
use build_info::audit::Rule;
use gguf::synth::{self, Preset, SynthOptions};
use object::{Object, ObjectSection, ObjectSymbol, SymbolKind};
use toolchain::setup::Requirement;

#[path = "common/tools.rs"]
mod tools;

/// Returns the folder of the builds.
fn builds() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/anneal")
}

/// Returns the current build of `profile`. Fails if the build is missing, because the tests would check nothing.
#[track_caller]
fn build(profile: &str) -> PathBuf {
    let folder = builds().join(profile);
    assert!(
        folder.join("bin/anneal").is_file(),
        "there is no {profile} build: run `cargo xtask ci`, which makes it, or `cargo xtask build --profile {profile}`"
    );
    std::fs::canonicalize(folder).unwrap()
}

fn xtask(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_xtask")).args(args).output().unwrap()
}

/// Runs `program` on an emulated CPU.
fn on_cpu(cpu: &str, program: &Path, args: &[&str]) -> Output {
    Command::new("qemu-x86_64")
        .args(["-cpu", cpu])
        .arg(program)
        .args(args)
        .output()
        .expect("qemu-x86_64 is needed (Debian: qemu-user)")
}

fn tiny() -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("tiny.gguf");
    synth::write(&model, &SynthOptions::new(Preset::Tiny)).unwrap();
    let name = model.to_str().unwrap().to_string();
    (folder, name)
}

#[track_caller]
fn tokens(output: Output) -> Vec<i64> {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    let tokens: Vec<i64> =
        report["tokens"].as_array().unwrap().iter().map(|token| token.as_i64().unwrap()).collect();
    assert!(!tokens.is_empty());
    tokens
}

#[test]
fn a_native_build_is_native_and_says_so() {
    let info = BuildInfo::read(&build("native").join("build_info.json")).unwrap();
    let flag = if info.target.starts_with("x86_64") { "-march=native" } else { "-mcpu" };
    assert!(info.effective_flags.ggml_cpu.iter().any(|found| found.starts_with(flag)), "{info:?}");
    assert!(!info.reproducible);
    assert!(info.smoke.is_some_and(|smoke| smoke.decode_tokens_per_second > 0.0));
}

#[test]
#[cfg(target_arch = "x86_64")]
fn the_audit_of_a_real_build_passes_and_finds_its_kernels() {
    let folder = build("native");
    let audit = BuildInfo::read(&folder.join("build_info.json")).unwrap().audit.unwrap();
    assert_eq!((audit.rule, audit.not_done.as_deref()), (Rule::Native, None));
    let output = xtask(&["audit", folder.to_str().unwrap(), "--json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let again: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(again["features"], serde_json::to_value(&audit.features).unwrap());
    assert!(audit.kernels > 20, "{audit:?}");
    // The kernels for AVX-512 and AMX are written for 32 registers, and the loops for AVX-VNNI are written in assembly.
    // The AVX2 kernels spill some registers.
    let native = &again["native"];
    assert!(native["kernels_examined"].as_u64().unwrap() > 20, "{native}");
    let spilt = |kernel: &&serde_json::Value| {
        let name = kernel["name"].as_str().unwrap();
        ["avx512vnni", "avxvnni", "amx"].iter().any(|set| name.contains(set)) && name.contains("multiply")
    };
    assert_eq!(native["spills"].as_array().unwrap().iter().find(spilt), None);
}

#[test]
fn written_records_are_what_the_schema_says() {
    let schema = include_str!("../../../docs/src/build/build_info.schema.json");
    let validator = jsonschema::validator_for(&serde_json::from_str(schema).unwrap()).unwrap();
    for profile in ["native", "universal-few"] {
        let text = std::fs::read(build(profile).join("build_info.json")).unwrap();
        let record: serde_json::Value = serde_json::from_slice(&text).unwrap();
        let errors: Vec<String> = validator.iter_errors(&record).map(|error| error.to_string()).collect();
        assert!(errors.is_empty(), "{profile}: {errors:#?}");
    }
}

#[test]
fn the_guard_names_what_a_cpu_lacks_instead_of_an_illegal_instruction() {
    let output = on_cpu("Nehalem", &build("native").join("bin/anneal"), &["--version"]);
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(69), "{message}");
    assert!(message.contains("avx2") && message.contains("build-native"), "{message}");
}

/// Guard that restores the profile's link when the test ends.
struct Restore {
    link: PathBuf,
    target: PathBuf,
}

impl Drop for Restore {
    fn drop(&mut self) {
        let beside = self.link.with_extension("restored");
        let _ = std::fs::remove_file(&beside);
        let done = std::os::unix::fs::symlink(&self.target, &beside)
            .and_then(|()| std::fs::rename(&beside, &self.link));
        assert!(
            done.is_ok() || std::thread::panicking(),
            "{} is not as it was: {done:?}",
            self.link.display()
        );
    }
}

/// Returns the functions of the CPU guard with their addresses, and the sections of a program.
fn guard_and_sections(program: &Path) -> (Vec<(String, u64, u64)>, Vec<String>) {
    let bytes = std::fs::read(program).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let mut inside = false;
    let mut guard = Vec::new();
    for symbol in file.symbols() {
        let name = symbol.name().unwrap_or_default();
        match symbol.kind() {
            SymbolKind::File => inside = name == "guard.c",
            SymbolKind::Text if inside => guard.push((name.to_string(), symbol.address(), symbol.size())),
            _ => {}
        }
    }
    (guard, file.sections().map(|section| section.name().unwrap_or_default().to_string()).collect())
}

/// Returns the PGO and BOLT build that `cargo xtask ci` made after the native build, with its record.
fn build_of_ci() -> Option<(PathBuf, BuildInfo)> {
    let native = BuildInfo::read(&build("native").join("build_info.json")).unwrap();
    let all = std::fs::read_dir(builds()).unwrap();
    all.map(|entry| entry.unwrap().path()).find_map(|folder| {
        let info = BuildInfo::read(&folder.join("build_info.json")).ok()?;
        let has_both = info.pgo.is_some() && info.bolt.is_some();
        let is_newer =
            info.profile == native.profile && info.source == native.source && info.date > native.date;
        (has_both && is_newer).then_some((folder, info))
    })
}

/// Makes a build with BOLT, with its record.
fn with_bolt(model: &str) -> (PathBuf, BuildInfo) {
    let anneal = builds();
    let link = anneal.join("native");
    let _restore = Restore { target: std::fs::read_link(&link).unwrap(), link };
    let output = xtask(&["bolt", "--model", model, "--workload", "mixed", "--pairs", "2", "--json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let info: BuildInfo = serde_json::from_slice(&output.stdout).unwrap();
    let end = format!("bolt-{}", info.plan_hash.short());
    let mut all = std::fs::read_dir(anneal).unwrap().map(|entry| entry.unwrap().path());
    (all.find(|path| path.to_string_lossy().ends_with(&end)).unwrap(), info)
}

#[test]
fn a_program_that_bolt_made_generates_the_same_and_keeps_its_guard() {
    if !tools::are_there(&[Requirement::Bolt]) {
        return;
    }
    let plain = build("native").join("bin/anneal");
    let (_folder, model) = tiny();
    let (bolted, info) = build_of_ci().unwrap_or_else(|| with_bolt(&model));
    let made = info.bolt.unwrap();
    assert!(made.layout.reordered > 100 && made.layout.hot_functions > 300, "{made:?}");
    assert!(made.layout.taken_branches.after < made.layout.taken_branches.before, "{made:?}");

    let bolted = bolted.join("bin/anneal");
    let (guard_before, sections_before) = guard_and_sections(&plain);
    let (guard, sections) = guard_and_sections(&bolted);
    assert!(sections.iter().any(|name| name == ".note.bolt_info"));
    assert!(
        !sections_before.iter().any(|name| name == ".note.bolt_info"),
        "the plain one was rewritten, too"
    );

    let args =
        ["run", "-m", &model, "-p", "the same, and faster", "-n", "32", "--greedy", "--json", "-t", "1"];
    let generate = |program: &Path| tokens(Command::new(program).args(args).output().unwrap());
    assert_eq!(generate(&bolted), generate(&plain));
    if cfg!(target_arch = "x86_64") {
        let names =
            |guard: &[(String, u64, u64)]| guard.iter().map(|f| (f.0.clone(), f.2)).collect::<Vec<_>>();
        assert!(names(&guard).iter().any(|(name, _)| name == "check"), "{guard:?}");
        assert_eq!(names(&guard), names(&guard_before));
        let output = on_cpu("Nehalem", &bolted, &["--version"]);
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(69), "{message}");
        assert!(message.contains("avx2") && message.contains("build-native"), "{message}");
    }
}

#[test]
fn the_sources_are_as_they_were_unpacked() {
    // Another test's build may hold the lock.
    let output = loop {
        let output = xtask(&["vendor", "--check", "--json"]);
        if output.status.code() != Some(75) {
            break output;
        }
        std::thread::sleep(std::time::Duration::from_millis(200));
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let tree: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(Path::new(tree["path"].as_str().unwrap()).join("include/llama.h").is_file());
}

#[test]
fn a_model_is_synthesised_quantised_and_run() {
    build("native");
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("a model.gguf");
    let output =
        xtask(&["model", "synth", "--preset", "tiny", "--quant", "q4_k_m", "--out", model.to_str().unwrap()]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let names: Vec<_> =
        std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["a model.gguf"], "something was left next to the model");
    let run = Command::new(build("native").join("bin/anneal"))
        .args(["run", "-p", "hello", "-n", "4", "--greedy", "--json", "--ignore-eos", "-m"])
        .arg(&model)
        .output()
        .unwrap();
    assert_eq!(tokens(run).len(), 4);
}

#[test]
fn a_model_that_cannot_be_written_leaves_nothing() {
    let output = xtask(&["model", "synth", "--preset", "tiny", "--out", "/proc/tiny.gguf"]);
    assert_eq!(output.status.code(), Some(1));
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(message.contains("/proc/tiny.gguf"), "{message}");
}

/// This test writes docs/src/run/anneal.md, so the page is always up to date.
#[test]
fn the_engines_reference_in_docs_is_that_of_the_program() {
    let anneal = build("native").join("bin/anneal");
    let help = |command: &[&str]| {
        // The width is fixed, so that the page does not depend on the terminal in which the test runs.
        let mut program = Command::new(&anneal);
        let output =
            program.args(command).arg("--help").env("COLUMNS", "100").stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success());
        let text = String::from_utf8(output.stdout).unwrap();
        let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
        lines.join("\n").trim_end().to_string()
    };
    let command = "UPDATE_DOCS=1 cargo test -p xtask --features long-tests --test end_to_end reference";
    let mut text = format!("# `anneal`\n\nGenerated from the program: `{command}` writes it.\n");
    text += &format!("\n## `anneal`\n\n```text\n{}\n```\n", help(&[]));
    // Lists every command in the program's help.
    let overview = help(&[]);
    // The commands are listed in groups between the usage and the options.
    let commands: Vec<&str> = overview
        .lines()
        .take_while(|line| *line != "Options:")
        .filter(|line| line.starts_with("  "))
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert!(commands.contains(&"run") && commands.contains(&"serve"), "{commands:?}");
    for command in commands {
        let own = help(&[command]);
        text += &format!("\n## `anneal {command}`\n\n```text\n{own}\n```\n");
        let inner =
            own.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
        for inner in inner.filter_map(|line| line.split_whitespace().next()).filter(|inner| *inner != "help")
        {
            text +=
                &format!("\n### `anneal {command} {inner}`\n\n```text\n{}\n```\n", help(&[command, inner]));
        }
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src/run/anneal.md");
    generated::check_by(path, &text, command);
}
