//! Tests that the user's files are kept if a command cannot write its output.

use std::path::Path;
use std::process::{Command, Output, Stdio};

fn xtask(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_lab")).args(arguments).stdin(Stdio::null()).output().expect("xtask runs")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("the folder");
    entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect()
}

const RESULT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/results/native-vs-llama-bench.json");

#[test]
fn a_record_takes_the_place_of_nothing_but_a_record() {
    let folder = tempfile::tempdir().expect("a folder");
    let (notes, model) = (folder.path().join("notes.txt"), folder.path().join("m.gguf"));
    std::fs::write(&model, "not looked at").expect("a file");
    std::fs::write(&notes, "precious\n").expect("a file");
    let validate = |out: &Path| {
        let output = xtask(&["validate", "/nowhere/a", "/nowhere/b", "-m", text(&model), "--out", text(out)]);
        // Exit code 2 means an error before a verdict; exit code 1 would mean a verdict.
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let said = validate(&notes);
    assert!(said.contains("notes.txt: it is not a record of measurements"), "{said}");
    assert_eq!(std::fs::read_to_string(&notes).expect("the notes"), "precious\n");
    // A file that Anneal wrote may be overwritten, so the error is about the missing builds.
    std::fs::copy(RESULT, &notes).expect("a copy");
    let said = validate(&notes);
    assert!(!said.contains("is no record"), "{said}");
}

#[test]
fn a_report_that_gets_too_large_for_the_user_leaves_nothing_half() {
    let folder = tempfile::tempdir().expect("a folder");
    // The first plot is larger than a block of 512 bytes, which is the unit of ulimit.
    let output = Command::new("sh")
        .args(["-c", "ulimit -f 1; exec \"$0\" report \"$1\" --out \"$2\""])
        .args([env!("CARGO_BIN_EXE_lab"), RESULT, text(folder.path())])
        .output()
        .expect("sh runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("cannot write") && said.contains("too large"), "{said}");
    let plots = names(&folder.path().join("plots"));
    assert!(plots.is_empty() && names(folder.path()) == ["plots"], "{plots:?}");
}
