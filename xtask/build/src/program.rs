//! Programs of ours that take one order as JSON and give one reply: xtask tells them what, as data, and does not have to be
//! compiled with all that they need.

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

/// How often a running program is looked at.
const PATIENCE: Duration = Duration::from_millis(20);

/// One of them.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// Its package, and its own name.
    pub name: &'static str,
    /// Features of its package.
    pub features: &'static str,
    /// What it does, as in "compiling what packs and installs".
    pub purpose: &'static str,
}

impl Program {
    /// Has it carry out `order`.
    ///
    /// # Errors
    /// Those of the program, with its exit code.
    pub fn give<A: DeserializeOwned>(
        &self,
        workspace: &Workspace,
        order: &impl Serialize,
        ui: &Ui,
    ) -> Result<A> {
        let program = self.compiled(workspace, ui)?;
        process::check_interrupted()?;
        let shown = program.display();
        // Before the program starts: without an order, it would complain as well.
        let text =
            serde_json::to_vec(order).with_context(|| format!("cannot write the order for {shown}"))?;
        let mut child = Command::new(&program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // It shows there how far it is, and nothing else.
            .stderr(if ui.quiet() { Stdio::null() } else { Stdio::inherit() })
            // Ctrl-C reaches us alone, and we pass it on once: the second one means at once.
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot run {shown}"))?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(&text).with_context(|| format!("cannot give {shown} its order"))?;
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
        let said = reader.join().map_err(|_| anyhow!("cannot read what {shown} said"))??;
        match serde_json::from_slice(&said) {
            Ok(Reply::Done(answer)) => Ok(answer),
            Ok(Reply::Failed(failed)) => Err(error(failed.code, failed.said)),
            Err(_) => Err(anyhow!("{shown} ended without an answer ({status})")),
        }
    }

    fn compiled(&self, workspace: &Workspace, ui: &Ui) -> Result<PathBuf> {
        self.compiled_with(&[], workspace, ui)
    }

    /// Where it lies; compiled when it is not there or of other sources. `more` are arguments of cargo.
    ///
    /// # Errors
    /// When it cannot be compiled.
    pub fn compiled_with(&self, more: &[&str], workspace: &Workspace, ui: &Ui) -> Result<PathBuf> {
        let folder = workspace.cargo_tools();
        cargo_build(self.name, self.purpose, workspace, ui, |run| {
            run.args(["--release", "--locked", "--no-default-features", "--features", self.features])
                .args(more)
                // What a shell has for something else: a compiler for another machine must not keep an archive from being
                // installed.
                .without(|name| name.starts_with("CARGO_BUILD_") || CLEARED.contains(&name))
                .env("CARGO_TARGET_DIR", &folder)
        })
    }

    /// What answers another question than was asked.
    pub fn unexpected(&self, answer: &impl std::fmt::Debug) -> anyhow::Error {
        anyhow!(
            "{} answered something else than it was asked: {answer:?}; its sources and xtask's are not of one kind",
            self.name
        )
    }
}

/// Environment variable with the path of the xtask that runs the lab.
pub const XTASK: &str = "ANNEAL_XTASK";

/// Compiles the program `name` as cargo compiled xtask, in the same target folder, so that shared crates are compiled once.
/// Returns its path. `purpose` completes the message "compiling what …, once".
///
/// In a target folder that cannot be written, the program that was compiled there is taken as it is.
///
/// # Errors
/// When it cannot be compiled.
pub fn compiled_beside(name: &str, purpose: &str, workspace: &Workspace, ui: &Ui) -> Result<PathBuf> {
    let beside = std::env::current_exe().ok().map(|own| own.with_file_name(name));
    match beside.filter(|beside| beside.is_file() && is_read_only(beside)) {
        Some(beside) => {
            ui.warn(format_args!(
                "{} is taken as it was compiled: nothing can be written beside it",
                beside.display()
            ));
            Ok(beside)
        }
        None => cargo_build(name, purpose, workspace, ui, |run| run),
    }
}

/// True if this process may not write to the folder of `program`, so cargo cannot compile it there.
fn is_read_only(program: &Path) -> bool {
    // Cargo takes this lock before anything else.
    let lock = OpenOptions::new().write(true).open(program.with_file_name(".cargo-lock"));
    lock.is_err_and(|error| {
        [ErrorKind::ReadOnlyFilesystem, ErrorKind::PermissionDenied].contains(&error.kind())
    })
}

/// Runs `cargo build` for the program `name`, with what `more` adds to the command, and returns the path of the program.
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
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let log = Log::new(folder.join(format!("{name}.log")), ui.verbose());
    let (mut found, mut told) = (None, false);
    let run = Run::new(process::cargo(), &log)
        .dir(workspace.root())
        .args(["build", "--package", name, "--bin", name])
        .args(["--message-format", "json-render-diagnostics"])
        // What cargo set for xtask, which has build scripts run again when it is another.
        .without(|name| ["CARGO_MANIFEST_", "CARGO_PKG_"].iter().any(|with| name.starts_with(with)));
    more(run).watch(|stream, line| {
        if stream == Stream::Out {
            let message: Message = serde_json::from_str(line).unwrap_or_default();
            found = message.executable.or(found.take());
        } else if line.trim_start().starts_with("Blocking") {
            ui.say(format_args!("waiting for another cargo: {}", line.trim()));
        } else if !told && line.trim_start().starts_with("Compiling") {
            told = true;
            ui.say(format_args!("compiling what {purpose}, once"));
        }
    })?;
    found.with_context(|| format!("cargo named no program `{name}`"))
}

/// A failure of the program, as an error of our own: the last cause first.
fn error(code: u8, said: Vec<String>) -> anyhow::Error {
    let mut causes = said.into_iter().rev();
    let first = exit::coded(code, causes.next().unwrap_or_else(|| "it did not say why".to_string()));
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
