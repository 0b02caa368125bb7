//! Helpers that several test files share.

use host::{Detected, Root};

/// Detects the machine in `snapshot`.
pub fn detect(snapshot: &str) -> Detected {
    host::detect(&Root::from_snapshot(snapshot).unwrap_or_else(|error| panic!("{error}\n{snapshot}")))
}

/// Returns the text of the snapshot `fixtures/roots/<name>.root`.
#[allow(dead_code, reason = "not every test file starts from a fixture")]
pub fn snapshot(name: &str) -> String {
    let path = format!("{}/../../fixtures/roots/{name}.root", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}
