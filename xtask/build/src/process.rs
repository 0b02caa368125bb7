//! External commands: printed, logged, watched, and stopped by ctrl-C.

mod executable;
pub mod pipes;
mod running;
mod signals;
mod words;

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use gguf::partial::free_space;

use crate::full_disk;

pub use executable::Executable;
pub use running::{Running, output, stop};
pub use signals::{begins_anew, catch_signals, check_interrupted, interrupted};
use words::short;
pub use words::{last_lines, line};

/// Maximum number of output lines in an error.
const TAIL: usize = 25;

/// Log file with the output of all commands of a build.
#[derive(Clone, Debug)]
pub struct Log {
    path: PathBuf,
    echo: bool,
}

impl Log {
    /// Creates a log that appends to `path`. If `echo` is true, each command is also printed to standard error.
    pub fn new(path: PathBuf, echo: bool) -> Self {
        Self { path, echo }
    }

    /// Returns the path of the log file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn open(&self) -> Result<File> {
        OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.path)
            .with_context(|| format!("cannot write the log {}", self.path.display()))
    }
}

/// Stream that a line came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// Event of a running command.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// Line that the command printed.
    Line(Stream, &'a str),
    /// Short period without output.
    Pause,
}

/// Command whose output goes to a log.
pub struct Run<'a> {
    command: Command,
    log: &'a Log,
    /// True if the output is written to the log.
    keep: bool,
}

impl<'a> Run<'a> {
    /// Creates a run of `program` that logs to `log`.
    pub fn new(program: impl AsRef<OsStr>, log: &'a Log) -> Self {
        Self { command: Command::new(program), log, keep: true }
    }

    /// Keeps the command's output out of the log.
    pub fn quietly(mut self) -> Self {
        self.keep = false;
        self
    }

    /// Adds arguments.
    pub fn args(mut self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        self.command.args(args);
        self
    }

    /// Sets an environment variable.
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Sets environment variables, and removes variables without a value.
    pub fn envs(mut self, variables: &std::collections::BTreeMap<String, Option<String>>) -> Self {
        for (name, value) in variables {
            match value {
                Some(value) => self.command.env(name, value),
                None => self.command.env_remove(name),
            };
        }
        self
    }

    /// Removes the environment variables whose name satisfies `unwanted`.
    pub fn without(mut self, unwanted: impl Fn(&str) -> bool) -> Self {
        for (name, _) in std::env::vars_os() {
            if name.to_str().is_some_and(&unwanted) {
                self.command.env_remove(name);
            }
        }
        self
    }

    /// Sets the working folder.
    pub fn dir(mut self, dir: &Path) -> Self {
        self.command.current_dir(dir);
        self
    }

    /// Returns the command as it would be typed in a shell.
    fn line(&self) -> String {
        line(&self.command)
    }

    /// Runs the command to its end and passes every line of output to `watch`.
    ///
    /// # Errors
    /// If the command fails, with its last lines of output and the path of the log, or if the user stopped the
    /// command.
    pub fn watch(self, mut watch: impl FnMut(Stream, &str)) -> Result<()> {
        self.watch_all(|event| {
            if let Event::Line(stream, line) = event {
                watch(stream, line);
            }
        })
    }

    /// Works like [`Run::watch`], and also calls `watch` regularly while there is no output.
    ///
    /// # Errors
    /// The errors of [`Run::watch`].
    pub fn watch_all(mut self, mut watch: impl FnMut(Event)) -> Result<()> {
        check_interrupted()?;
        let line = self.line();
        let mut log = self.log.open()?;
        let _ = writeln!(log, "$ {line}");
        if self.log.echo {
            // A closed standard error must not stop the command.
            let _ = writeln!(std::io::stderr(), "$ {line}");
        }
        let mut running = Running::start(&mut self.command)?;
        let (sender, lines) = mpsc::channel();
        let readers = [
            running.child.stdout.take().map(|stream| read_lines(stream, Stream::Out, sender.clone())),
            running.child.stderr.take().map(|stream| read_lines(stream, Stream::Err, sender)),
        ];
        let mut tail: VecDeque<String> = VecDeque::new();
        loop {
            match lines.recv_timeout(Duration::from_millis(100)) {
                Ok((stream, text)) => {
                    if self.keep {
                        let _ = writeln!(log, "{text}");
                    }
                    watch(Event::Line(stream, &text));
                    if is_command_of_cargo(&text) {
                        // The cause itself was printed before, and the command is in the log.
                        let is_cause = text.trim_start().starts_with("process didn't");
                        if is_cause && tail.back().is_some_and(|last| last == "Caused by:") {
                            tail.pop_back();
                        }
                    } else {
                        if tail.len() == TAIL {
                            tail.pop_front();
                        }
                        tail.push_back(text);
                    }
                }
                Err(mpsc::RecvTimeoutError::Timeout) => watch(Event::Pause),
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
            }
            running.pass_on_interrupts();
        }
        for reader in readers.into_iter().flatten() {
            let _ = reader.join();
        }
        let status = running.child.wait().with_context(|| format!("cannot wait for {line}"))?;
        check_interrupted()?;
        if status.success() {
            return Ok(());
        }
        Err(self.failure(&line, status, &tail))
    }

    /// Runs the command to its end and returns its standard output.
    ///
    /// # Errors
    /// The errors of [`Run::watch`].
    pub fn output(self) -> Result<String> {
        let mut output = String::new();
        self.watch(|stream, line| {
            if stream == Stream::Out {
                output.push_str(line);
                output.push('\n');
            }
        })?;
        Ok(output)
    }

    fn failure(&self, line: &str, status: ExitStatus, tail: &VecDeque<String>) -> anyhow::Error {
        let printed: Vec<&str> = tail.iter().map(String::as_str).collect();
        let mut message = format!(
            "{} failed ({status}){}\n  all output: {}",
            short(line),
            last_lines(&printed, TAIL),
            self.log.path.display()
        );
        let told = tail.iter().any(|text| text.contains("No space left on device"));
        if let Some(hint) = full_disk::hint(told, free_space(&self.log.path)) {
            message.push_str(&format!("\nhint: {hint}"));
        }
        anyhow!(message)
    }
}

/// True if `line` shows a command that cargo prints with `-v`, or is a line that cargo prints before or after this
/// command. These lines do not help the reader of an error.
fn is_command_of_cargo(line: &str) -> bool {
    let text = line.trim_start();
    line.starts_with("{\"reason\":")
        || ["Running `", "Fresh ", "Dirty "]
            .iter()
            .any(|begin| text.len() < line.len() && text.starts_with(begin))
        || (text.starts_with("process didn't exit successfully: `") && text.contains(" --crate-name "))
}

fn read_lines(
    stream: impl Read + Send + 'static,
    kind: Stream,
    sender: mpsc::Sender<(Stream, String)>,
) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        for line in BufReader::new(stream).split(b'\n') {
            let Ok(line) = line else { break };
            let line = String::from_utf8_lossy(&line).trim_end_matches('\r').to_string();
            if sender.send((kind, line)).is_err() {
                break;
            }
        }
    })
}

/// Returns the `cargo` that started this process, so that a build uses the same cargo.
pub fn cargo() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_shows_the_last_lines_and_the_log() {
        let folder = tempfile::tempdir().unwrap();
        let log = Log::new(folder.path().join("build.log"), false);
        let script = "for i in $(seq 100); do echo line $i; done; echo broken >&2; exit 3";
        let error = Run::new("sh", &log).args(["-c", script]).watch(|_, _| {}).unwrap_err().to_string();
        assert!(error.contains("exit status: 3"), "{error}");
        assert!(error.contains("line 100") && error.contains("broken"), "{error}");
        assert!(!error.contains("line 70\n"), "more than the tail: {error}");
        assert!(error.contains("build.log"), "{error}");
        let log = std::fs::read_to_string(folder.path().join("build.log")).unwrap();
        assert!(log.starts_with("$ sh -c '") && log.contains("line 1\n"), "{log}");
    }

    #[test]
    fn commands_that_cargo_names_are_in_the_log_and_in_no_error() {
        let folder = tempfile::tempdir().unwrap();
        let log = Log::new(folder.path().join("build.log"), false);
        let printed = "{\"reason\":\"compiler-artifact\"}
       Fresh syn v2.0.119
       Dirty server v0.1.0 (/anneal/engine/server): the file `lib.rs` has changed
     Running `rustc --crate-name server engine/server/src/lib.rs`
error[E0425]: cannot find value `x`
error: could not compile `server` (lib) due to 1 previous error

Caused by:
  process didn't exit successfully: `rustc --crate-name server` (exit status: 1)
error: failed to run custom build command for `llama-link`

Caused by:
  process didn't exit successfully: `/t/build-script-build` (exit status: 101)
";
        std::fs::write(folder.path().join("printed"), printed).unwrap();
        let run = Run::new("sh", &log).dir(folder.path()).args(["-c", "cat printed; exit 101"]);
        let error = run.watch(|_, _| {}).unwrap_err().to_string();
        assert!(!error.contains("--crate-name") && !error.contains("Fresh"), "{error}");
        assert!(!error.contains("Dirty") && !error.contains("reason"), "{error}");
        assert_eq!(error.matches("Caused by:").count(), 1, "{error}");
        assert!(error.contains("E0425") && error.contains("`/t/build-script-build`"), "{error}");
        assert!(std::fs::read_to_string(log.path()).unwrap().contains(printed));
    }

    #[test]
    fn a_missing_program_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let log = Log::new(folder.path().join("build.log"), false);
        let error = format!("{:#}", Run::new("no-such-tool", &log).args(["a b"]).output().unwrap_err());
        assert!(error.contains("cannot start no-such-tool 'a b'"), "{error}");
    }
}
