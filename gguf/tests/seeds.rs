//! What the fuzzer starts from and what it has found, without a fuzzer.

#[path = "../../fuzz/src/gguf_header.rs"]
mod gguf_header;

use std::fs;
use std::path::Path;

#[test]
fn every_seed_is_read_or_refused() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds/gguf_header");
    let mut files: Vec<_> =
        fs::read_dir(&folder).expect("the seeds").map(|entry| entry.expect("a file").path()).collect();
    files.sort();
    assert!(files.len() >= 10, "{} seeds in {}", files.len(), folder.display());
    for file in files {
        let bytes = fs::read(&file).expect("a seed");
        assert!(bytes.len() <= 64 << 10, "{} is too large for a seed", file.display());
        eprintln!("{}", file.display());
        gguf_header::check(&bytes);
    }
}
