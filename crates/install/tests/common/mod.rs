//! Both installers: `anneal self` and install.sh, which runs `anneal self` of the archive.
#![allow(dead_code, reason = "each test takes what it needs")]

pub mod interference;
#[path = "../../../ship/tests/common/mod.rs"]
mod packing;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

pub use packing::*;

/// Installer under test. Each test must pass with both.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Installer {
    Program,
    Script,
}

pub const BOTH: [Installer; 2] = [Installer::Program, Installer::Script];

/// Exit code and output of an installer.
pub type InstallerEnd = (i32, String);

impl Installer {
    /// Returns the command that installs `from`, with more `arguments`, which both installers accept.
    pub fn command(self, from: &str, arguments: &[&str], prefix: &Path) -> Command {
        let arguments = [&["--from", from][..], arguments].concat();
        match self {
            Self::Program => own_command(&[&["install"][..], &arguments].concat(), prefix),
            Self::Script => script_command(&arguments, prefix),
        }
    }

    pub fn install(self, from: &Path, prefix: &Path) -> InstallerEnd {
        self.install_with(from.to_str().unwrap(), prefix, &[])
    }

    pub fn install_with(self, from: &str, prefix: &Path, arguments: &[&str]) -> InstallerEnd {
        ended(self.command(from, arguments, prefix))
    }

    pub fn rollback(self, prefix: &Path) -> InstallerEnd {
        match self {
            Self::Program => own(&["rollback"], prefix),
            Self::Script => script(&["--rollback"], prefix),
        }
    }

    pub fn uninstall(self, prefix: &Path, all: bool) -> InstallerEnd {
        let all: &[&str] = if all { &["--all"] } else { &[] };
        match self {
            Self::Program => own(&[&["uninstall"][..], all].concat(), prefix),
            Self::Script => script(&[&["--uninstall"][..], all].concat(), prefix),
        }
    }
}

/// Returns the command `anneal self` with `arguments`.
pub fn own_command(arguments: &[&str], prefix: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_install"));
    command.arg("self").args(arguments).arg("--prefix").arg(prefix).env_remove("ANNEAL_MINISIGN_KEY");
    command
}

/// Runs `anneal self`.
pub fn own(arguments: &[&str], prefix: &Path) -> InstallerEnd {
    ended(own_command(arguments, prefix))
}

/// Returns the output of `anneal self list --json`.
pub fn listed(prefix: &Path) -> Vec<Value> {
    let output = own_command(&["list", "--json"], prefix).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Returns the command of install.sh.
pub fn script_command(arguments: &[&str], prefix: &Path) -> Command {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/install.sh");
    // A shell cannot trap a signal that was ignored when it started, as SIGINT is in a background job of a script.
    let mut command = Command::new("env");
    command
        .args(["--default-signal=HUP,INT,TERM", "sh", script])
        .args(arguments)
        .arg("--prefix")
        .arg(prefix)
        .env_remove("ANNEAL_MINISIGN_KEY");
    command
}

pub fn script(arguments: &[&str], prefix: &Path) -> InstallerEnd {
    ended(script_command(arguments, prefix))
}

/// Runs install.sh on a system whose only programs are those in `bin`.
pub fn script_with(bin: &Path, arguments: &[&str], prefix: &Path) -> InstallerEnd {
    let mut command = script_command(arguments, prefix);
    command.env("PATH", bin);
    ended(command)
}

pub fn ended(mut command: Command) -> InstallerEnd {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = [stdout, stderr].concat();
    (status.code().unwrap_or(-1), String::from_utf8_lossy(&text).into_owned())
}

/// Creates a folder with the programs that install.sh uses and this system has, except those in `without`.
pub fn tools(temp: &Path, without: &[&str]) -> PathBuf {
    let bin = temp.join(format!("bin-without-{}", without.join("-")));
    fs::create_dir(&bin).unwrap();
    let all = "sh awk cat chmod cp curl cut env grep gzip id minisign mktemp od rm sed sha256sum tail tar timeout tr \
               uname wc wget zstd";
    for tool in all.split_whitespace().filter(|tool| !without.contains(tool)) {
        let found = Command::new("sh").args(["-c", &format!("command -v {tool}")]).output().unwrap();
        let path = String::from_utf8_lossy(&found.stdout).trim().to_string();
        if !path.is_empty() {
            std::os::unix::fs::symlink(path, bin.join(tool)).unwrap();
        }
    }
    bin
}

/// Replaces the program `name` in `bin` with a script, which can run the original as `$real`.
pub fn stand_in(bin: &Path, name: &str, script: &str) {
    let path = bin.join(name);
    let real = fs::read_link(&path).unwrap();
    fs::remove_file(&path).unwrap();
    fs::write(&path, format!("#!/bin/sh\nreal='{}'\n{script}\n", real.display())).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Returns the output of the installed program, or `None` if it does not run.
pub fn runs(prefix: &Path) -> Option<String> {
    let output = Command::new(prefix.join("bin/anneal")).arg("--version").output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_string())
}
