//! A command while it runs: how it is started, and how it is stopped.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::signals::INTERRUPTED;
use super::words::line;

/// A command that runs in a group of its own: ctrl-C reaches us alone, and we stop the command with all its children.
pub struct Running {
    /// Its process.
    pub child: Child,
    /// How often the user had asked to stop when the command was told last.
    asked: u32,
    _watchdog: Option<Watchdog>,
}

impl Running {
    /// Starts `command` without input; what it prints is to be read from both pipes all the while.
    pub fn start(command: &mut Command) -> Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.process_group(0);
        let child = command.spawn().with_context(|| format!("cannot start {}", line(command)))?;
        let watchdog = Watchdog::of(&child);
        Ok(Self { child, asked: 0, _watchdog: watchdog })
    }

    /// Tells the command when the user asked to stop: the first ctrl-C lets tools remove what they half wrote, the
    /// second one is final.
    pub fn pass_on_interrupts(&mut self) {
        let now = INTERRUPTED.load(Ordering::SeqCst);
        if now > self.asked {
            stop(&self.child, self.asked > 0);
            self.asked = now;
        }
    }
}

/// Asks the group of `child`, which it leads, to end; `force` does not ask.
pub fn stop(child: &Child, force: bool) {
    let signal = if force { Signal::SIGKILL } else { Signal::SIGTERM };
    if let Ok(group) = i32::try_from(child.id()) {
        // It may have ended by itself meanwhile.
        let _ = killpg(Pid::from_raw(group), signal);
    }
}

/// Ends a command when this process was killed and cannot: a shell that waits for the end of a pipe whose other end
/// is ours. Without it a build that was killed (`kill -9`, the out-of-memory killer) goes on in ninja to its end.
///
/// A death signal (`PR_SET_PDEATHSIG`) would have to be set by unsafe code between fork and exec, and would not reach
/// the commands of a command.
struct Watchdog(Child);

impl Watchdog {
    /// Watches over the group of `child`. Where it cannot be, the command runs without.
    fn of(child: &Child) -> Option<Self> {
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", "read -r done || kill -s TERM -- \"-$0\"", &child.id().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Not to be ended by the ctrl-C or the kill that ends us.
            .process_group(0);
        command.spawn().ok().map(Self)
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        if let Some(mut pipe) = self.0.stdin.take() {
            let _ = pipe.write_all(b"done\n");
        }
        let _ = self.0.wait();
    }
}
