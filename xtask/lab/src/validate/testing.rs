//! Fake engines for tests. The engines are scripts.

use std::io::Write;
use std::process::{Command, Stdio};

use build::compare::CandidateBuild;

use super::subject::{Side, Subject};

/// Folder for the engines.
pub struct Stage {
    folder: tempfile::TempDir,
}

impl Stage {
    /// Creates an empty folder.
    pub fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    /// Returns the path of the folder.
    pub fn folder(&self) -> &str {
        self.folder.path().to_str().unwrap()
    }

    /// Creates an engine that runs `script`.
    pub fn subject(&self, side: Side, script: &str) -> Subject {
        let path = self.folder.path().join(format!("engine-{side}"));
        // Another process writes the script, because a script cannot be run while a forked child has it open for
        // writing.
        let mut writer = Command::new("sh")
            .args(["-c", "cat > \"$0\" && chmod +x \"$0\""])
            .arg(&path)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        writer.stdin.take().unwrap().write_all(format!("#!/bin/sh\n{script}\n").as_bytes()).unwrap();
        assert!(writer.wait().unwrap().success());
        Subject::new(side, CandidateBuild::at("engine", &path).unwrap(), Vec::new()).unwrap()
    }

    /// Creates the fake engine of xtask/lab/tests/validate.rs, which behaves as `plan` says.
    pub fn fake(&self, side: Side, plan: &str) -> Subject {
        let script = include_str!("../../tests/data/fake-anneal.sh");
        self.subject(side, &script.replace(". \"$(dirname \"$0\")/plan\"", plan))
    }
}
