//! Child process that is monitored while it runs and stopped at its time limit.

use std::process::Command;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use build::process::pipes::{drain, last_said, line_without_folders, read};
use build::process::{self, Running};

/// Interval between checks of a program that prints nothing.
const TICK: Duration = Duration::from_millis(50);

/// Time between asking a program to end and killing the program.
const PATIENCE: Duration = Duration::from_secs(3);

/// Number of output lines of a failed program that an error shows.
const TAIL: usize = 8;

/// Program that ended by itself.
#[derive(Clone, Debug)]
pub struct EndedChild {
    /// Exit code; `None` if a signal ended the program.
    pub code: Option<i32>,
    /// Standard output of the program.
    pub stdout: Vec<u8>,
    /// Standard error of the program.
    pub stderr: String,
    /// Command line without folders.
    line: String,
    how: String,
}

/// Runs `command` for at most `limit`. Calls `look` with the process id and with output as it arrives.
///
/// # Errors
/// If the command cannot be started or takes too long, or the user interrupts it.
pub fn run(mut command: Command, limit: Duration, look: &mut dyn FnMut(u32, &[u8])) -> Result<EndedChild> {
    process::check_interrupted()?;
    let line = line_without_folders(&command);
    let started = Instant::now();
    let mut running = Running::start(&mut command).with_context(|| format!("cannot start {line}"))?;
    let pid = running.child.id();
    let errors = drain(running.child.stderr.take());
    let (reader, output) = read(running.child.stdout.take());
    let (mut stdout, mut open) = (Vec::new(), true);
    let mut asked: Option<Instant> = None;
    let status = loop {
        if open {
            match output.recv_timeout(TICK) {
                Ok(bytes) => {
                    look(pid, &bytes);
                    stdout.extend(bytes);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => open = false,
            }
        } else {
            std::thread::sleep(TICK);
        }
        running.pass_on_interrupts();
        match asked {
            None if started.elapsed() > limit => {
                process::stop(&running.child, false);
                asked = Some(Instant::now());
            }
            Some(since) if since.elapsed() > PATIENCE => process::stop(&running.child, true),
            _ => {}
        }
        let ended = running.child.try_wait().with_context(|| format!("cannot wait for {line}"))?;
        if let (false, Some(status)) = (open, ended) {
            break status;
        }
    };
    let _ = reader.join();
    let stderr = errors.join().unwrap_or_default();
    process::check_interrupted()?;
    let stderr = String::from_utf8_lossy(&stderr).into_owned();
    if asked.is_some() {
        bail!(
            "{line} did not end within {:.0} s and was stopped{}",
            limit.as_secs_f64(),
            last_said(stderr.as_bytes(), TAIL)
        );
    }
    Ok(EndedChild { code: status.code(), stdout, stderr, line, how: status.to_string() })
}

impl EndedChild {
    /// Returns an error unless the program succeeded.
    pub fn check(self) -> Result<Self> {
        if self.code != Some(0) {
            bail!("{} ended with {}{}", self.line, self.how, last_said(self.stderr.as_bytes(), TAIL));
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str, limit: Duration) -> Result<EndedChild> {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        run(command, limit, &mut |_, _| {})
    }

    #[test]
    fn what_a_program_says_is_kept_and_its_end_told() {
        let minute = Duration::from_secs(60);
        let ended = sh("echo out; echo 'decode 40 tokens 7.5 t/s' >&2; exit 69", minute).unwrap();
        assert_eq!((ended.code, ended.stdout.as_slice()), (Some(69), &b"out\n"[..]));
        assert_eq!(ended.stderr, "decode 40 tokens 7.5 t/s\n");
        let error = ended.check().unwrap_err().to_string();
        assert!(error.starts_with("sh -c ") && error.contains("exit status: 69; its last lines"), "{error}");
        assert!(sh("exit 0", minute).unwrap().check().is_ok());
    }

    #[test]
    fn a_program_that_takes_too_long_is_stopped_even_if_it_does_not_listen() {
        for script in ["sleep 60", "trap '' TERM; while :; do sleep 0.1; done"] {
            let started = Instant::now();
            let error = sh(script, Duration::from_millis(200)).unwrap_err().to_string();
            assert!(error.contains("did not end within 0 s and was stopped"), "{error}");
            assert!(started.elapsed() < Duration::from_secs(30));
        }
    }
}
