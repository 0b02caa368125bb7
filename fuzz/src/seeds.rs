//! Seeds of the fuzzers and inputs that they found, for tests that run without a fuzzer.

use std::fs;
use std::path::Path;

/// Passes every seed of `target` to `check`. Each seed's name is printed first, so that a crash can be attributed.
pub fn every(target: &str, check: fn(&[u8])) {
    let above = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().map(|folder| folder.join("fuzz/seeds"));
    let folder = above.filter(|folder| folder.is_dir()).last().expect("the seeds").join(target);
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
