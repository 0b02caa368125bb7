//! Execution of the steps of a setup plan, and analysis of failures.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use super::console::Console;
use super::plan::{InstallStep, StepKind};
use crate::search::SearchPath;

/// Number of output lines of a failed command in its error.
const LAST_LINES: usize = 12;

/// Signal that ctrl-C sends.
const SIGINT: i32 = 2;

/// Failure of a step.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// The command cannot be started.
    #[error("cannot run `{command}`: {reason}")]
    Start {
        /// Command line of the step.
        command: String,
        /// Error from the operating system.
        reason: io::Error,
    },
    /// Ctrl-C ended the command.
    #[error("`{command}` was stopped")]
    Interrupted {
        /// Command line of the step.
        command: String,
    },
    /// The command ran and failed.
    #[error("`{command}` failed ({status}): {cause}\n{}{remedy}", last_lines.join("\n"))]
    Failed {
        /// Command line of the step.
        command: String,
        /// Exit status of the command.
        status: String,
        /// Cause that the output indicates.
        cause: &'static str,
        /// Hint line with the remedy. Empty if the remedy is unknown.
        remedy: &'static str,
        /// Last lines of the output.
        last_lines: Vec<String>,
    },
}

/// Runs `step` and passes every line of its output to `console`.
///
/// The command stays in this process group, so that sudo can ask for a password and a terminal's ctrl-C reaches the
/// command. This process does not kill a package manager, because only the package manager knows where it can safely
/// stop.
pub(crate) fn run(
    step: &InstallStep,
    search: &SearchPath,
    console: &mut dyn Console,
) -> Result<(), StepError> {
    console.command(step);
    let start = |reason| StepError::Start { command: step.to_string(), reason };
    let path = std::env::join_paths(&search.dirs).map_err(|error| start(io::Error::other(error)))?;
    let Some((program, args)) = step.command.split_first() else { return Ok(()) };
    let (reader, writer) = io::pipe().map_err(start)?;
    let mut command = Command::new(program);
    command.args(args).env("PATH", path).env("LC_ALL", "C");
    // sudo reads the password from the terminal itself.
    command.stdin(Stdio::null()).stdout(writer.try_clone().map_err(start)?).stderr(writer);
    let mut child = command.spawn().map_err(start)?;
    // The command holds the write end of the pipe. The reader sees the end only after the write end is closed.
    drop(command);
    let mut last_lines = VecDeque::new();
    let mut lines = BufReader::new(reader);
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line).map_err(start)? > 0 {
        let text = String::from_utf8_lossy(&line).trim_end().to_string();
        console.output(&text);
        last_lines.push_back(text);
        if last_lines.len() > LAST_LINES {
            last_lines.pop_front();
        }
        line.clear();
    }
    let status = child.wait().map_err(start)?;
    let last_lines = Vec::from(last_lines);
    // `apt-get update` succeeds even if it reached no server.
    let (cause, remedy) = cause(&last_lines);
    let warns = step.kind == StepKind::Refresh && (cause, remedy) == NO_NETWORK;
    if status.success() && !warns {
        return Ok(());
    }
    // sudo ends with the signal that ended its command; a shell exits with 128 plus the signal's number.
    if status.signal() == Some(SIGINT) || status.code() == Some(128 + SIGINT) {
        return Err(StepError::Interrupted { command: step.to_string() });
    }
    Err(StepError::Failed {
        command: step.to_string(),
        status: status.to_string(),
        cause,
        remedy,
        last_lines,
    })
}

const NO_NETWORK: (&str, &str) = (
    "the package server cannot be reached",
    "\nhint: check the network, the proxy (http_proxy, https_proxy) and the package sources, then run the command \
     again",
);

/// Returns the cause of a failure, found in the last lines of a package manager's output, and the hint line with its
/// remedy.
fn cause(last_lines: &[String]) -> (&'static str, &'static str) {
    const CAUSES: [(&[&str], (&str, &str)); 4] = [
        (
            &[
                "resolving",
                "could not resolve",
                "name resolution",
                "network is unreachable",
                "connection refused",
                "connection timed out",
                "could not connect",
                "unable to connect",
                "failed to fetch",
                "failed to download metadata",
                "failed to establish a new connection",
                "temporary error (try again later)",
            ],
            NO_NETWORK,
        ),
        (&["no space left"], ("the disk is full", "\nhint: free some space and run the command again")),
        (
            &[
                "could not get lock",
                "unable to lock",
                "waiting for process with pid",
                "dpkg was interrupted",
                "database is locked",
            ],
            (
                "another package manager is running or was interrupted",
                "\nhint: wait until it has finished (on Debian, `dpkg --configure -a` completes an interrupted \
                 installation), then run the command again",
            ),
        ),
        (
            &[
                "unable to locate package",
                "has no installation candidate",
                "no match for argument",
                "target not found",
                "not found in package names",
                "no such package",
            ],
            (
                "the package sources do not contain one of the packages; the package lists may be \
                 outdated, or a repository may be disabled",
                "",
            ),
        ),
    ];
    let text = last_lines.join("\n").to_lowercase();
    CAUSES
        .iter()
        .find(|(signs, _)| signs.iter().any(|sign| text.contains(sign)))
        .map_or(("see the last lines of the output", ""), |(_, cause)| *cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_explained() {
        let cases = [
            (
                "Err:1 http://deb.debian.org bookworm\n  Temporary failure resolving 'deb.debian.org'",
                "cannot be reached",
            ),
            ("E: Failed to fetch http://x/y.deb  Could not connect to x:80", "cannot be reached"),
            ("WARNING: fetching https://dl-cdn: temporary error (try again later)", "cannot be reached"),
            ("error: could not write: No space left on device", "disk is full"),
            (
                "E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 1",
                "another package manager",
            ),
            ("E: Unable to locate package clang-99", "do not contain one of the packages"),
            ("Segmentation fault", "the last lines of the output"),
        ];
        for (output, expected) in cases {
            let lines: Vec<String> = output.lines().map(str::to_string).collect();
            let (cause, remedy) = cause(&lines);
            assert!(cause.contains(expected), "{output}: {cause}");
            assert!(remedy.is_empty() || remedy.starts_with("\nhint: "), "{output}: {remedy:?}");
        }
    }
}
