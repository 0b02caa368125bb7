//! Start and stop of an external command.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::signals::INTERRUPTED;
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
/// A death signal (`PR_SET_PDEATHSIG`) would have to be set by unsafe code between fork and exec, and would not reach
/// the command's own children.
struct Watchdog(Child);

impl Watchdog {
    /// Starts a watchdog for the group of `child`. If the watchdog cannot be started, the command runs without a
    /// watchdog.
    fn of(child: &Child) -> Option<Self> {
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", "read -r done || kill -s TERM -- \"-$0\"", &child.id().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // The watchdog must survive the ctrl-C or kill that ends this process.
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
