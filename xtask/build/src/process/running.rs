//! Start and stop of an external command.

use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::pipes::drain;
use super::signals::{INTERRUPTED, check_interrupted};
use super::words::line;

/// Command in its own process group. Ctrl-C reaches only this process, which then stops the command with all its
/// children.
pub struct Running {
    /// Process of the command.
    pub child: Child,
    /// Number of interruptions forwarded to the command.
    asked: u32,
    _watchdog: Option<Watchdog>,
}

impl Running {
    /// Starts `command` without input. The caller must read both pipes continuously.
    ///
    /// # Errors
    /// If the command cannot be started.
    pub fn start(command: &mut Command) -> Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.process_group(0);
        let child = command.spawn().with_context(|| format!("cannot start {}", line(command)))?;
        let watchdog = Watchdog::of(&child);
        Ok(Self { child, asked: 0, _watchdog: watchdog })
    }

    /// Forwards interruptions to the command. The first ctrl-C lets tools remove unfinished files; the second ctrl-C
    /// kills the tools.
    pub fn pass_on_interrupts(&mut self) {
        let now = INTERRUPTED.load(Ordering::SeqCst);
        if now > self.asked {
            stop(&self.child, self.asked > 0);
            self.asked = now;
        }
    }
}

/// Runs `command` to its end, whether it succeeds or fails. Ctrl-C stops the command with all its children.
///
/// # Errors
/// If the command cannot be started, or the user stops it.
pub fn output(command: &mut Command) -> Result<Output> {
    check_interrupted()?;
    let mut running = Running::start(command)?;
    let (out, err) = (drain(running.child.stdout.take()), drain(running.child.stderr.take()));
    let status = loop {
        let ended = running.child.try_wait().with_context(|| format!("cannot wait for {}", line(command)))?;
        if let Some(status) = ended {
            break status;
        }
        running.pass_on_interrupts();
        std::thread::sleep(Duration::from_millis(20));
    };
    let (stdout, stderr) = (out.join().unwrap_or_default(), err.join().unwrap_or_default());
    check_interrupted()?;
    Ok(Output { status, stdout, stderr })
}

/// Sends SIGTERM, or SIGKILL if `force` is set, to the process group that `child` leads.
pub fn stop(child: &Child, force: bool) {
    let signal = if force { Signal::SIGKILL } else { Signal::SIGTERM };
    if let Ok(group) = i32::try_from(child.id()) {
        // The group may already have ended.
        let _ = killpg(Pid::from_raw(group), signal);
    }
}

/// Shell that ends a command after this process has been killed. The shell reads from a pipe that closes when this
/// process ends. Without the shell, a build that was killed (by `kill -9` or the out-of-memory killer) would continue
/// in ninja.
///
/// The shell also holds the read ends of the command's pipes, as its own outputs, to which it writes nothing. Without
/// them, a ninja that prints before SIGTERM reaches it would be ended by SIGPIPE, and would leave its compilers behind:
/// each has a process group of its own, which ninja ends only on SIGTERM.
///
/// A death signal (`PR_SET_PDEATHSIG`) would have to be set by unsafe code between fork and exec, and would not reach
/// the command's own children.
struct Watchdog(Child);

impl Watchdog {
    /// Starts a watchdog for the group of `child`. If the watchdog cannot be started, the command runs without a
    /// watchdog.
    fn of(child: &Child) -> Option<Self> {
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", WATCH, &child.id().to_string()])
            .stdin(Stdio::piped())
            .stdout(second_end(child.stdout.as_ref()))
            .stderr(second_end(child.stderr.as_ref()))
            // The watchdog must survive the ctrl-C or kill that ends this process.
            .process_group(0);
        command.spawn().ok().map(Self)
    }
}

/// Script of the watchdog; `$0` is the process group. After SIGTERM, the shell keeps the pipes open for up to 10 s,
/// until the group has ended.
const WATCH: &str = r#"read -r done && exit
kill -s TERM -- "-$0"
left=100
while [ $((left -= 1)) -gt 0 ] && kill -s 0 -- "-$0"; do sleep 0.1; done"#;

/// Returns a second handle of the read end `pipe`, or `/dev/null` if there is none.
fn second_end(pipe: Option<&impl AsFd>) -> Stdio {
    pipe.and_then(|pipe| pipe.as_fd().try_clone_to_owned().ok()).map_or_else(Stdio::null, Stdio::from)
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        if let Some(mut pipe) = self.0.stdin.take() {
            let _ = pipe.write_all(b"done\n");
        }
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_fails_is_an_output_with_its_code() {
        let mut shell = Command::new("sh");
        shell.args(["-c", "read -r line; echo \"out $line\"; echo err >&2; exit 125"]);
        let ended = output(&mut shell).unwrap();
        assert_eq!(ended.status.code(), Some(125));
        // The command has no input.
        assert_eq!((&*ended.stdout, &*ended.stderr), (&b"out \n"[..], &b"err\n"[..]));
        assert!(output(&mut Command::new("/missing/command")).is_err());
    }

    #[test]
    fn a_command_may_print_while_its_reader_is_gone() {
        let mut shell = Command::new("sh");
        shell.args(["-c", "sleep 0.5; echo out && echo err >&2"]);
        let mut running = Running::start(&mut shell).unwrap();
        drop((running.child.stdout.take(), running.child.stderr.take()));
        assert_eq!(running.child.wait().unwrap().code(), Some(0));
    }
}
