//! Tests that run the engine's examples as programs.
//!
//! Cargo builds examples together with the engine's package, so these tests are a separate test program.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

#[path = "../common/mod.rs"]
mod common;

/// Runs each example as its first lines describe.
#[test]
fn the_examples_run() {
    let folder = Path::new(common::ANNEAL).parent().expect("a folder").join("examples");
    let model = common::tiny().to_str().expect("UTF-8");
    let cases: [(&str, &[&str], &str, &str); 4] = [
        ("generate", &[model, "Once upon a time", "8"], "", "[Some(Length)]"),
        ("stream_async", &[model, "8"], "", "stopped after "),
        ("embed", &[model, "a cat", "a cat", "a ship"], "", " 1.000  a cat"),
        ("chat", &[model, "chatml", "8"], "Hello\nAnd now?\n", "\n"),
    ];
    for (name, arguments, input, expected) in cases {
        let program = folder.join(name);
        assert!(program.is_file(), "{}: run `cargo build -p engine --examples` first", program.display());
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        child.stdin.take().expect("its input").write_all(input.as_bytes()).expect("written");
        let output = child.wait_with_output().expect("it ends");
        let (code, stdout, stderr) = common::parts(&output);
        assert_eq!(code, Some(0), "{name}: {stderr}");
        assert!(stdout.contains(expected), "{name}: {stdout}");
        // A library prints nothing to stderr.
        assert_eq!(stderr, "", "{name}");
    }
    let (code, stdout, _) =
        common::parts(&Command::new(folder.join("generate")).output().expect("it starts"));
    assert_eq!((code, stdout.as_str()), (Some(1), ""));
}
