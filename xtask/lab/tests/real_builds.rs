//! Tests with real builds. `cargo xtask ci` makes the builds before it runs the tests.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use gguf::synth::{self, Preset, SynthOptions};

/// Returns the current build of `profile`. Panics if the build is missing, so that the tests cannot pass without
/// testing anything.
#[track_caller]
fn build(profile: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/anneal").join(profile);
    assert!(
        folder.join("bin/anneal").is_file(),
        "there is no {profile} build: run `cargo xtask ci`, which makes it, or `cargo xtask build --profile {profile}`"
    );
    std::fs::canonicalize(folder).unwrap()
}

fn xtask(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_lab")).args(args).output().unwrap()
}

fn tiny() -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("tiny.gguf");
    synth::write(&model, &SynthOptions::new(Preset::Tiny)).unwrap();
    let name = model.to_str().unwrap().to_string();
    (folder, name)
}

#[test]
fn every_phase_of_two_real_builds_is_measured() {
    build("native");
    build("universal-few");
    let (_folder, model) = tiny();
    let command =
        ["bench", "compare", "--builds", "native,universal-few", "-m", &model, "-p", "32", "-n", "4"];
    let output = xtask(&[&command[..], &["--pairs", "1", "--json"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let result: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let figures = result["figures"].as_array().unwrap();
    assert_eq!(figures.len(), 13, "{result}");
    for figure in figures {
        assert!(figure["results"][1]["ratio"]["median"].as_f64() > Some(0.0), "{figure}");
    }
    for field in ["plan_hash", "llama_version", "source_digest"] {
        assert!(result["builds"][0][field].is_string(), "{field}: {result}");
    }
}
