//! What the fuzzers start from and what they have found, without a fuzzer.

#[path = "../../fuzz/src/gbnf.rs"]
mod gbnf;
#[path = "../../fuzz/src/request.rs"]
mod request;
#[path = "../../fuzz/src/template.rs"]
mod template;

use std::fs;
use std::path::Path;

fn every(target: &str, check: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds").join(target);
    let mut files: Vec<_> =
        fs::read_dir(&folder).expect("the seeds").map(|entry| entry.expect("a file").path()).collect();
    files.sort();
    assert!(files.len() >= 10, "{} seeds in {}", files.len(), folder.display());
    for file in files {
        let bytes = fs::read(&file).expect("a seed");
        assert!(bytes.len() <= 64 << 10, "{} is too large for a seed", file.display());
        eprintln!("{}", file.display());
        check(&bytes);
    }
}

#[test]
fn requests_are_read_or_refused() {
    every("request", request::check);
}

#[test]
fn grammars_are_translated_or_refused() {
    every("gbnf", gbnf::check);
}

#[test]
fn templates_are_rendered_or_refused() {
    every("template", template::check);
}
