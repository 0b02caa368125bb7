//! Programs of the workspace that accept one request (an "order") as JSON and print one reply. xtask runs these
//! programs instead of linking their code, so that xtask is compiled without their dependencies.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use base::exit;
use plan::CLEARED;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use ship::order::Reply;

use crate::process::{self, Log, Run, Stream};
use crate::ui::Ui;
use crate::workspace::Workspace;

/// Interval at which a running program is checked.
const PATIENCE: Duration = Duration::from_millis(20);

/// Program that accepts requests.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// Name of the package and of the program.
    pub name: &'static str,
    /// Cargo features of the package.
    pub features: &'static str,
    /// Purpose that completes the message "compiling the program that …", such as "packs and installs".
    pub purpose: &'static str,
}

impl Program {
    /// Runs the program with `order` and returns its reply.
    ///
    /// # Errors
    /// The errors of the program, with its exit code.
    pub fn give<A: DeserializeOwned>(
        &self,
        workspace: &Workspace,
        order: &impl Serialize,
        ui: &Ui,
    ) -> Result<A> {
        let program = self.compiled(workspace, ui)?;
        process::check_interrupted()?;
        let shown = program.display();
        // The request is serialised before the program starts, because a program that gets no request would report a
        // misleading error.
        let text =
            serde_json::to_vec(order).with_context(|| format!("cannot serialise the command for {shown}"))?;
        let mut child = Command::new(&program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // The program prints only progress to standard error.
            .stderr(if ui.quiet() { Stdio::null() } else { Stdio::inherit() })
            // Ctrl-C reaches only this process, which forwards it once, because a second signal would end the program
            // at once.
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot run {shown}"))?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(&text).with_context(|| format!("cannot send the command to {shown}"))?;
        }
        let mut stdout = child.stdout.take().with_context(|| format!("{shown} has no output"))?;
        let reader = std::thread::spawn(move || {
            let mut said = Vec::new();
            stdout.read_to_end(&mut said).map(|_| said)
        });
        let mut told = false;
        let status = loop {
            if let Some(status) = child.try_wait().with_context(|| format!("cannot wait for {shown}"))? {
                break status;
            }
            if process::interrupted() && !told {
                process::stop(&child, false);
                told = true;
            }
            std::thread::sleep(PATIENCE);
        };
        let said = reader.join().map_err(|_| anyhow!("cannot read the output of {shown}"))??;
        match serde_json::from_slice(&said) {
            Ok(Reply::Done(answer)) => Ok(answer),
            Ok(Reply::Failed(failed)) => Err(error(failed.code, failed.said)),
            Err(_) => Err(anyhow!("{shown} ended without a reply ({status})")),
        }
    }

    fn compiled(&self, workspace: &Workspace, ui: &Ui) -> Result<PathBuf> {
        self.compiled_with(&[], workspace, ui)
    }

    /// Returns the program's path, after compiling it if it is missing or outdated. `more` are arguments of cargo.
    ///
    /// # Errors
    /// If the program cannot be compiled.
    pub fn compiled_with(&self, more: &[&str], workspace: &Workspace, ui: &Ui) -> Result<PathBuf> {
        let folder = workspace.cargo_tools();
        cargo_build(self.name, self.purpose, workspace, ui, |run| {
            run.args(["--release", "--locked", "--no-default-features", "--features", self.features])
                .args(more)
                // These variables may be set for other purposes. For example, a compiler for another machine must not
                // prevent the installation of an archive.
                .without(|name| name.starts_with("CARGO_BUILD_") || CLEARED.contains(&name))
                .env("CARGO_TARGET_DIR", &folder)
        })
    }

    /// Returns the error for an unexpected reply.
    pub fn unexpected(&self, answer: &impl std::fmt::Debug) -> anyhow::Error {
        anyhow!(
            "{} sent an unexpected reply: {answer:?}; it was not compiled from the same sources as xtask",
            self.name
        )
    }
}

/// Environment variable with the path of the xtask that runs the lab.
pub const XTASK: &str = "ANNEAL_XTASK";

/// Returns the path of the xtask that runs this program, or of the xtask in the same folder.
///
/// # Errors
/// If the path of this program cannot be determined.
pub fn xtask() -> Result<PathBuf> {
    match std::env::var_os(XTASK) {
        Some(path) => Ok(path.into()),
        None => {
            let own = std::env::current_exe().context("cannot determine the path of this program")?;
            Ok(own.with_file_name("xtask"))
        }
    }
}

/// Compiles the program `name` with the same settings and into the same target folder as xtask, so that shared crates
/// are compiled once. Returns its path. `purpose` completes the message "compiling the program that …".
///
/// If the target folder is read-only, returns the program that was compiled earlier.
///
/// # Errors
/// If the program cannot be compiled.
pub fn compiled_beside(name: &str, purpose: &str, workspace: &Workspace, ui: &Ui) -> Result<PathBuf> {
    let beside = std::env::current_exe().ok().map(|own| own.with_file_name(name));
    match beside.filter(|beside| beside.is_file() && is_read_only(beside)) {
        Some(beside) => {
            ui.warn(format_args!(
                "cannot compile {} again, because its folder is read-only; using the existing program",
                beside.display()
            ));
            Ok(beside)
        }
        None => cargo_build(name, purpose, workspace, ui, |run| run),
    }
}

/// True if this process may not write to the folder of `program`, in which case cargo cannot compile it there.
fn is_read_only(program: &Path) -> bool {
    // Cargo opens this lock file before anything else.
    let lock = OpenOptions::new().write(true).open(program.with_file_name(".cargo-lock"));
    lock.is_err_and(|error| {
        [ErrorKind::ReadOnlyFilesystem, ErrorKind::PermissionDenied].contains(&error.kind())
    })
}

/// Runs `cargo build` for the program `name`, with the additions that `more` makes to the command, and returns the
/// path of the program.
fn cargo_build(
    name: &str,
    purpose: &str,
    workspace: &Workspace,
    ui: &Ui,
    more: impl for<'b> FnOnce(Run<'b>) -> Run<'b>,
) -> Result<PathBuf> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Message {
        executable: Option<PathBuf>,
    }
    let folder = workspace.cargo_tools();
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let log = Log::new(folder.join(format!("{name}.log")), ui.verbose());
    let (mut found, mut told) = (None, false);
    let run = Run::new(process::cargo(), &log)
        .dir(workspace.root())
        .args(["build", "--package", name, "--bin", name])
        .args(["--message-format", "json-render-diagnostics"])
        // Cargo set these variables for xtask. If they differ, build scripts run again.
        .without(|name| ["CARGO_MANIFEST_", "CARGO_PKG_"].iter().any(|with| name.starts_with(with)));
    more(run).watch(|stream, line| {
        if stream == Stream::Out {
            let message: Message = serde_json::from_str(line).unwrap_or_default();
            found = message.executable.or(found.take());
        } else if line.trim_start().starts_with("Blocking") {
            ui.say(format_args!("waiting for another cargo process: {}", line.trim()));
        } else if !told && line.trim_start().starts_with("Compiling") {
            told = true;
            ui.say(format_args!("compiling the program that {purpose} (only once)"));
        }
    })?;
    found.with_context(|| format!("cargo reported no program `{name}`"))
}

/// Converts a failure of the program to an error; the program prints its causes from the outermost to the root.
fn error(code: u8, said: Vec<String>) -> anyhow::Error {
    let mut causes = said.into_iter().rev();
    let first = exit::coded(code, causes.next().unwrap_or_else(|| "the program gave no reason".to_string()));
    causes.fold(first, |error, cause| error.context(cause))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_keeps_its_code_and_all_that_was_said() {
        let said = ["cannot install", "the archive is damaged", "its sum differs"].map(String::from);
        let error = error(69, said.to_vec());
        assert_eq!(exit::code_of(&error), 69);
        assert_eq!(format!("{error:#}"), said.join(": "));
    }
}
