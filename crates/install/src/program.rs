//! Test run of an unpacked program.

use std::ffi::OsStr;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use base::exit;
use base::exit::UNAVAILABLE;

use crate::interrupt;

/// Time limit for printing one line.
const LONGEST: Duration = Duration::from_secs(10);

/// Maximum number of output bytes that are stored.
const MOST_OUTPUT: u64 = 1 << 16;

/// Runs `program --version` in `folder` with an empty environment, under `emulator` if that is not empty, and returns
/// the output.
///
/// # Errors
/// If the program fails; the error contains the program's output. The exit code is 69 if the program's CPU guard
/// refuses this CPU.
pub fn version(emulator: &[String], program: &Path, folder: &Path) -> Result<String> {
    let shown = program.display();
    let mut words = emulator.iter().map(OsStr::new).chain([program.as_os_str()]);
    let mut child = Command::new(words.next().unwrap_or(program.as_os_str()))
        .args(words)
        .arg("--version")
        .env_clear()
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| {
            format!(
                "cannot run {shown}: the file system may be mounted with noexec, or the loader is missing"
            )
        })?;
    let said = reader(child.stdout.take());
    let complained = reader(child.stderr.take());
    let started = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().with_context(|| format!("cannot wait for {shown}"))? {
            break status;
        }
        let stopped = interrupt::check();
        if stopped.is_err() || started.elapsed() > LONGEST {
            let _ = child.kill();
            let _ = child.wait();
            stopped?;
            return Err(anyhow!("{shown} --version timed out after {} s", LONGEST.as_secs()));
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    // The wait is limited, because a child of the program could keep the pipes open.
    let text = |from: mpsc::Receiver<String>| from.recv_timeout(Duration::from_secs(1)).unwrap_or_default();
    let (said, complained) = (text(said), text(complained));
    let complained = complained.trim();
    if status.success() {
        return Ok(said.trim().to_string());
    }
    if status.code() == Some(i32::from(UNAVAILABLE)) {
        return Err(exit::lacks(complained.to_string()));
    }
    let words = if complained.is_empty() { "and printed nothing" } else { complained };
    Err(anyhow!("{shown} --version failed ({status}): {words}"))
}

/// Returns a channel with the text from `pipe`, once the pipe ends.
fn reader(pipe: Option<impl Read + Send + 'static>) -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(pipe) = pipe {
            let _ = pipe.take(MOST_OUTPUT).read_to_end(&mut bytes);
        }
        let _ = sender.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    receiver
}
