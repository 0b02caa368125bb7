//! Tests of commands in a checkout with a running build.

use std::path::Path;
use std::process::{Command, Stdio};

use build::stages::CheckoutLock;
use build::workspace::Workspace;

#[test]
fn wrong_usage_is_told_of_at_once_though_another_build_is_running() {
    let checkout = tempfile::tempdir().unwrap();
    let profiles = checkout.path().join("profiles/build");
    std::fs::create_dir_all(&profiles).unwrap();
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../profiles/build");
    for name in ["base", "dev", "native"] {
        let file = format!("{name}.toml");
        std::fs::copy(own.join(&file), profiles.join(&file)).unwrap();
    }
    let _lock = CheckoutLock::take(&Workspace::at(checkout.path())).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_lab"))
        .args(["bench", "build", "--profile", "nope"])
        .env("ANNEAL_WORKSPACE", checkout.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("available profiles: dev, native"), "{said}");
}
