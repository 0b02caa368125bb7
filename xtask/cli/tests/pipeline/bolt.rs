//! Tests of `bolt` on a small engine, with the real llvm-bolt.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use build_info::BuildInfo;
use gguf::synth::{self, Preset, SynthOptions};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use object::Object;
use toolchain::setup::Requirement;

use crate::checkout::{ANSWERS, Checkout, Run, write};
use crate::tools;

/// C code that runs before all other code, like the CPU guard of the real engine.
const GUARD: &str = r#"
static void guard(int argc, char ** argv, char ** env) { (void) argc; (void) argv; (void) env; }
__attribute__((section(".preinit_array"), used))
static void (* const first)(int, char **, char **) = guard;
"#;

/// Build script that follows link.json and links the guard, as llama-sys does in the real engine.
const BUILD_RS: &str = r#"
fn main() {
    let object = format!("{}/guard.o", std::env::var("OUT_DIR").unwrap());
    let made = std::process::Command::new("cc").args(["-c", "-O1", "-fPIC", "guard.c", "-o", &object]).status();
    assert!(made.unwrap().success());
    println!("cargo::rustc-link-arg={object}");
    let link = std::path::Path::new(&std::env::var("ANNEAL_LLAMA_PREFIX").unwrap()).join("link.json");
    println!("cargo::rerun-if-env-changed=ANNEAL_LLAMA_PREFIX");
    println!("cargo::rerun-if-changed={}", link.display());
    if std::fs::read_to_string(link).unwrap().contains("--emit-relocs") {
        println!("cargo::rustc-link-arg=-Wl,--emit-relocs");
    }
}
"#;

/// Engine that does some work and prints the values that the smoke test and the comparison read. `FAKE_ANNEAL` selects
/// a fault. The faults that kill the program, omit the counts or make the program wait affect only the program with
/// counters.
const ENGINE: &str = r#"
use std::hint::black_box;
use std::os::unix::process::CommandExt;
use std::process::Command;

#[inline(never)]
fn step(x: u64) -> u64 {
    match x % 7 { 0 => x / 7, 1 | 2 => x * 3 + 1, 3 => x ^ 0x55, _ => x - 1 }
}

fn main() {
    let path = std::env::current_exe().unwrap().display().to_string();
    let fake = std::env::var("FAKE_ANNEAL").unwrap_or_default();
    if std::env::args().nth(1).is_some_and(|command| command == "logits") {
        return logits("");
    }
    let x = (0..2000u64).fold(12345, |x, i| step(black_box(x + i)));
    if path.contains("/counting/") {
        match fake.as_str() {
            "killed" => std::process::abort(),
            "silent" => panic!("{}", Command::new("true").exec()),
            "slow" => { Command::new("sleep").arg("60").status().unwrap(); }
            _ => {}
        }
    }
    let args: Vec<String> = std::env::args().collect();
    if args.get(1).is_some_and(|arg| arg == "bench") {
        let value = |name: &str| args.iter().position(|arg| arg == name).map(|at| args[at + 1].clone()).unwrap();
        let speed = if fake == "faster" && path.contains("-bolt-") { 200 } else { 100 };
        let parts: Vec<String> = value("--parts")
            .split(',')
            .map(|part| {
                let time = 1_000_000 / speed;
                format!("{{\"part\":\"{part}\",\"n_prompt\":1,\"n_gen\":1,\"avg_ns\":{time},\"avg_per_second\":{speed}}}")
            })
            .collect();
        println!("[{}]", parts.join(","));
        return;
    }
    let tokens: Vec<String> = (0..63).chain([x % 1000]).map(|token| token.to_string()).collect();
    println!(
        "{{\"huge_pages\":{},\"isa_required\":[],\"tokens\":[{}],\"timings\":{{\"prefill_tokens_per_second\":2.5,\"decode_tokens_per_second\":1.5}}}}",
        huge_pages(),
        tokens.join(",")
    );
}
"#;

/// Creates a checkout whose engine can be rewritten, and a model to train on.
fn checkout() -> (Checkout, PathBuf) {
    let checkout = Checkout::new("check out");
    write(&checkout.root.join("engine/anneal/build.rs"), BUILD_RS);
    write(&checkout.root.join("engine/anneal/guard.c"), GUARD);
    write(&checkout.root.join("engine/anneal/main.rs"), &format!("{ENGINE}{ANSWERS}"));
    let workload = "description = \"\"\nmodels = [\"tiny/F16\"]\nruns = [[\"run\"], [\"run\", \"again\"]]";
    write(&checkout.root.join("profiles/workloads/small.toml"), workload);
    let model = checkout.root.join("tiny.gguf");
    synth::write(&model, &SynthOptions::new(Preset::Tiny)).unwrap();
    (checkout, model)
}

fn bolt(checkout: &Checkout, model: &Path, fake: &str) -> std::process::Command {
    let (source, model) = (checkout.source.to_str().unwrap(), model.to_str().unwrap());
    let mut command = checkout.command(&["bolt", "--pairs", "6", "--path", source, "--model", model]);
    command.env("FAKE_ANNEAL", fake);
    command
}

fn run(checkout: &Checkout, model: &Path, fake: &str) -> Run {
    bolt(checkout, model, fake).output().unwrap().into()
}

fn current(checkout: &Checkout) -> String {
    let folder = std::fs::canonicalize(checkout.current("native")).unwrap();
    folder.file_name().unwrap().to_string_lossy().into_owned()
}

#[test]
fn what_wins_becomes_current_and_is_found_again() {
    if !tools::are_there(&[Requirement::Bolt]) {
        return;
    }
    let (checkout, model) = checkout();
    let first = run(&checkout, &model, "faster").expect(0, "finished bolt");
    for stage in
        ["install", "engine", "instrument", "train", "merge", "bolt", "smoke test", "compare", "total"]
    {
        assert!(first.err.contains(stage), "no {stage} in the table:\n{}", first.err);
    }
    assert_eq!(first.err.matches("finished compile").count(), 1, "C++ was compiled twice:\n{}", first.err);
    assert!(first.out.contains("the build with BOLT is current"), "{}", first.out);

    assert!(current(&checkout).starts_with("native-bolt-"), "{}", current(&checkout));
    let folder = checkout.current("native");
    let info = checkout.record("native");
    let (made, gain) = (info.bolt.as_ref().unwrap(), info.gain.as_ref().unwrap());
    assert!(gain.kept && gain.overall.low > 1.5, "{gain:?}");
    assert_eq!((made.training.runs, made.training.counters.as_str()), (2, "atomic"));
    assert!(made.layout.hot_functions > 0 && made.layout.functions > made.layout.hot_functions, "{made:?}");
    assert!(made.layout.taken_branches.before > 1000, "the loop was not counted: {made:?}");
    assert_eq!(made.size_after.0, std::fs::metadata(folder.join("bin/anneal")).unwrap().len());
    assert!(info.toolchain.contains_key("llvm-bolt"));
    let program = std::fs::read(folder.join("bin/anneal")).unwrap();
    let program = object::File::parse(&*program).unwrap();
    assert!(program.section_by_name(".note.bolt_info").is_some());
    assert!(program.section_by_name(".rela.text").is_none(), "relocations were shipped");
    // The build has its own prefix to link against.
    assert!(folder.join("prefix/lib/libllama.a").is_file());

    // The programs with counters were deleted, but the profile was kept.
    let relocatable = std::fs::read_dir(checkout.root.join("target/anneal"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.to_string_lossy().contains("native-relocatable-"))
        .unwrap();
    let left: Vec<_> = std::fs::read_dir(relocatable.join("bolt"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(left, ["merged"]);

    let again = run(&checkout, &model, "faster").expect(0, "");
    for stage in ["compile", "instrument", "train", "merge", "bolt"] {
        assert!(!again.err.contains(&format!("finished {stage}")), "{stage} was run again:\n{}", again.err);
    }
    assert_eq!(checkout.record("native").bolt, info.bolt);

    // `build` accepts the rewritten program, and `--plain` makes the plain build current again.
    checkout.build("native").expect(0, "up to date");
    assert!(current(&checkout).starts_with("native-bolt-"));
    checkout.xtask(&["build", "--plain", "--path", checkout.source.to_str().unwrap()]).expect(0, "");
    assert!(!current(&checkout).contains("bolt"), "{}", current(&checkout));
}

#[test]
fn what_does_not_win_stays_aside_with_its_figures() {
    if !tools::are_there(&[Requirement::Bolt]) {
        return;
    }
    let (checkout, model) = checkout();
    checkout.build("native").expect(0, "built");
    let good = current(&checkout);
    let equal = run(&checkout, &model, "").expect(0, "finished bolt");
    assert!(equal.out.contains("the build without BOLT is current"), "{}", equal.out);
    assert_eq!(current(&checkout), good);
    let bolted = std::fs::read_dir(checkout.root.join("target/anneal"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.to_string_lossy().contains("native-bolt-"))
        .unwrap();
    let gain = BuildInfo::read(&bolted.join("build_info.json")).unwrap().gain.unwrap();
    assert!(!gain.kept && gain.verdict.contains("no difference shown"), "{gain:?}");
    // With `--keep-going`, the rewritten build is kept.
    Run::from(bolt(&checkout, &model, "").arg("--keep-going").output().unwrap()).expect(0, "");
    assert_eq!(current(&checkout), bolted.file_name().unwrap().to_string_lossy());
}

#[test]
fn a_training_that_comes_to_no_end_leaves_the_current_build() {
    if !tools::are_there(&[Requirement::Bolt]) {
        return;
    }
    let (checkout, model) = checkout();
    checkout.build("native").expect(0, "built");
    let good = current(&checkout);
    // First the program crashes; then it succeeds but writes no counts.
    for (fake, expected) in
        [("killed", "training run 1 of 2 failed"), ("silent", "only 0 of 2 training runs left counts")]
    {
        run(&checkout, &model, fake).expect(1, expected);
        assert_eq!(current(&checkout), good);
    }

    // Ctrl-C interrupts the training.
    let child = bolt(&checkout, &model, "slow").spawn().unwrap();
    let begun = Instant::now();
    while !std::fs::read_dir("/proc").unwrap().flatten().any(|process| {
        std::fs::read_link(process.path().join("exe"))
            .is_ok_and(|exe| exe.starts_with(&checkout.root) && exe.to_string_lossy().contains("/counting/"))
    }) {
        assert!(begun.elapsed() < Duration::from_secs(600), "the training was not reached");
        std::thread::sleep(Duration::from_millis(20));
    }
    kill(Pid::from_raw(child.id().try_into().unwrap()), Signal::SIGINT).unwrap();
    Run::from(child.wait_with_output().unwrap()).expect(130, "run the same command again to resume");
    assert_eq!(current(&checkout), good);

    let run = run(&checkout, &model, "faster").expect(0, "kept instrument");
    assert!(run.err.contains("finished train"), "{}", run.err);
    assert!(current(&checkout).starts_with("native-bolt-"));
}

#[test]
fn a_program_that_was_linked_without_relocations_is_refused() {
    if !tools::are_there(&[Requirement::Bolt]) {
        return;
    }
    let (checkout, model) = checkout();
    std::fs::remove_file(checkout.root.join("engine/anneal/build.rs")).unwrap();
    run(&checkout, &model, "").expect(1, "contains no code relocations");
    assert!(!checkout.current("native").exists(), "a build that was not requested became current");
}

#[test]
fn what_is_asked_for_wrongly_is_told_before_anything_is_built() {
    let (checkout, model) = checkout();
    let model = model.to_str().unwrap();
    let cases: [(&[&str], i32, &str); 4] = [
        (&["bolt", "--workload", "absent"], 2, "available workloads: small"),
        (&["bolt", "--model", "absent.gguf"], 1, "cannot use the model for training"),
        (&["bolt", "--method", "magic"], 2, "invalid value 'magic'"),
        (&["bolt", "--model", model, "--profile", "absent"], 2, "no build profile"),
    ];
    for (args, code, expected) in cases {
        checkout.xtask(args).expect(code, expected);
        assert!(!checkout.root.join("target").exists(), "{args:?} built something");
    }
}

#[test]
fn a_build_with_a_profile_is_rewritten_with_it_and_found_again_behind_the_result() {
    if !tools::are_there(&[Requirement::Bolt, Requirement::LlvmTools]) {
        return;
    }
    let (checkout, model) = checkout();
    let (source, model_name) = (checkout.source.to_str().unwrap(), model.to_str().unwrap());
    let held_out = "description = \"\"\nmodels = [\"tiny/F16\"]\nruns = [[\"run\", \"else\"]]";
    write(&checkout.root.join("profiles/workloads/held-out/other.toml"), held_out);
    let pgo =
        ["pgo", "--scope", "rust", "--keep-going", "--pairs", "2", "--path", source, "--model", model_name];
    checkout.xtask(&pgo).expect(0, "");
    let with_profile = current(&checkout);
    assert!(with_profile.starts_with("native-pgo-"), "{with_profile}");
    let pgo = checkout.record("native").pgo.unwrap();

    let bolted = run(&checkout, &model, "faster").expect(0, "finished bolt");
    assert!(bolted.out.contains("native with PGO"), "{}", bolted.out);
    assert!(current(&checkout).starts_with("native-pgo-bolt-"), "{}", current(&checkout));
    let info = checkout.record("native");
    assert_eq!(info.pgo.as_ref(), Some(&pgo));
    assert_ne!(info.bolt.as_ref().unwrap().profile, pgo.profile, "BOLT used the PGO profile");
    // The second run starts from the current build.
    let again = run(&checkout, &model, "faster").expect(0, "");
    assert!(!again.err.contains("finished bolt"), "{}", again.err);
    // `clean` removes leftovers of the profile's variants, but not the base of the current build.
    let cleaned = checkout.xtask(&["clean", "native"]).expect(0, "native-pgo-relocatable-");
    assert!(cleaned.err.contains("native-pgo-train-"), "{}", cleaned.err);
    let base = checkout.root.join("target/anneal").join(&with_profile);
    assert!(base.is_dir(), "{}", cleaned.err);
    // Now the base of the current build is missing.
    std::fs::remove_dir_all(base).unwrap();
    run(&checkout, &model, "faster").expect(1, "rebuild it with `cargo xtask pgo`");
    assert!(current(&checkout).starts_with("native-pgo-bolt-"), "{}", current(&checkout));
}
