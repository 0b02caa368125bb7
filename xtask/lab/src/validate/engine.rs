//! Runs an engine and monitors it.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use base::exit;
use build::process;
use build::process::pipes::{drain, last_said, line_without_folders, read};

use super::subject::{Side, Subject};

/// Number of lines of a failed program's output that an error shows.
const TAIL: usize = 8;

/// Path of a tuning record that does not exist. With this path, the engine uses no tuning and does not mention tuning.
const NO_TUNING: &str = "/nonexistent/anneal-tuning.json";

/// Interval between checks of a run that prints nothing.
const TICK: Duration = Duration::from_millis(20);

/// Time limit of a run.
#[derive(Clone, Copy, Debug)]
pub struct Stay(Option<Duration>);

impl Stay {
    /// Returns no time limit; only Ctrl-C ends the run.
    pub fn forever() -> Self {
        Self(None)
    }

    /// Returns the limit of B's run if A's run took `a` seconds. The limit is generous: it stops engines that hang,
    /// not engines that are slow.
    pub fn after(a: f64) -> Self {
        Self(Some(
            Duration::from_secs(60)
                .saturating_add(Duration::try_from_secs_f64(20.0 * a).unwrap_or(Duration::MAX)),
        ))
    }

    /// Returns a limit of `time`.
    #[cfg(test)]
    pub fn for_at_most(time: Duration) -> Self {
        Self(Some(time))
    }
}

/// Event during the run of an engine.
pub enum EngineEvent<'a> {
    /// The engine printed these bytes on standard output.
    Output(&'a [u8]),
    /// Time passed without output.
    Tick,
}

/// Run that succeeded.
pub struct Ended {
    /// Standard output of the run.
    pub stdout: Vec<u8>,
    /// Seconds that the run took.
    pub seconds: f64,
}

/// Failure of an engine. A failure of B's engine is a verdict.
#[derive(Debug)]
pub struct Broken {
    /// Side of the engine.
    pub side: Side,
    /// Exit code; `None` if the engine did not exit by itself.
    pub code: Option<i32>,
    why: String,
}

impl Broken {
    /// Creates a failure of `side` with the reason `why`.
    pub fn new(side: Side, why: String) -> Self {
        Self { side, code: None, why }
    }

    /// True if the engine rejected its arguments.
    pub fn is_usage(&self) -> bool {
        self.code == Some(i32::from(exit::USAGE))
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.side, self.why)
    }
}

impl std::error::Error for Broken {}

/// Runs the engine of `subject` with `arguments`, which begin with the command, and with the flags of `subject`.
/// Calls `each` with the process id and with output as it arrives.
///
/// # Errors
/// [`Broken`] if the engine cannot be started, fails, is killed or exceeds its time limit. Another error if the disk
/// is full, because that is not the engine's fault. An interruption if the user stopped the engine.
pub fn run(
    subject: &Subject,
    arguments: Vec<OsString>,
    stay: Stay,
    each: &mut dyn FnMut(u32, EngineEvent<'_>),
) -> Result<Ended> {
    process::check_interrupted()?;
    let mut command = Command::new(subject.program());
    command.args(arguments).args(&subject.flags);
    // Only the command `run` uses the tuning record. Hiding the record gives all commands the same settings.
    command.env("ANNEAL_TUNING", NO_TUNING);
    let line = line_without_folders(&command);
    let broken = |why: String| anyhow::Error::from(Broken::new(subject.side, why));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // In a separate process group, the engine does not receive Ctrl-C. This program receives Ctrl-C and stops the
    // engine.
    command.process_group(0);
    let started = Instant::now();
    let mut child = command.spawn().map_err(|error| broken(format!("cannot start {line}: {error}")))?;
    let pid = child.id();
    let errors = drain(child.stderr.take());
    let (reader, output) = read(child.stdout.take());
    let mut stdout = Vec::new();
    let mut open = true;
    let mut late = false;
    let status = loop {
        let event = if open { output.recv_timeout(TICK) } else { pause() };
        match event {
            Ok(bytes) => {
                each(pid, EngineEvent::Output(&bytes));
                stdout.extend(bytes);
            }
            Err(RecvTimeoutError::Timeout) => each(pid, EngineEvent::Tick),
            Err(RecvTimeoutError::Disconnected) => open = false,
        }
        late = late || stay.0.is_some_and(|time| started.elapsed() > time);
        if late || process::interrupted() {
            process::stop(&child, true);
        }
        if !open && let Some(status) = child.try_wait().with_context(|| format!("cannot wait for {line}"))? {
            break status;
        }
    };
    let seconds = started.elapsed().as_secs_f64();
    let _ = reader.join();
    let stderr = errors.join().unwrap_or_default();
    process::check_interrupted()?;
    if late {
        return Err(broken(format!("{line} did not end within {seconds:.0} s and was stopped")));
    }
    if !status.success() {
        let why = format!("{line} ended with {status}{}", last_said(&stderr, TAIL));
        if why.contains("No space left on device") {
            bail!("{why}\nhint: the disk is full; free some space and run the same command again");
        }
        return Err(Broken { side: subject.side, code: status.code(), why }.into());
    }
    Ok(Ended { stdout, seconds })
}

fn pause() -> Result<Vec<u8>, RecvTimeoutError> {
    std::thread::sleep(TICK);
    Err(RecvTimeoutError::Timeout)
}

#[cfg(test)]
mod tests {
    use super::super::testing::Stage;
    use super::*;

    #[test]
    fn failures_are_told_apart() {
        let stage = Stage::new();
        let run = |script: &str, stay: Stay| {
            let subject = stage.subject(Side::B, script);
            run(&subject, vec!["x".into()], stay, &mut |_, _| {})
        };
        let cases = [
            ("echo broken >&2; exit 3", "exit status: 3; its last lines:\n    broken"),
            ("kill -SEGV $$", "signal: 11"),
            ("sleep 100", "did not end within"),
            // A program that prints without pauses is also stopped.
            ("while :; do echo sleep; done", "did not end within"),
        ];
        for (script, words) in cases {
            let stay =
                Stay::for_at_most(Duration::from_millis(if script.contains("sleep") { 200 } else { 60_000 }));
            let error = run(script, stay).err().expect("it fails");
            let broken = error.downcast_ref::<Broken>().expect("a failure of the engine");
            assert_eq!(broken.side, Side::B);
            assert!(error.to_string().contains(words), "{script}: {error}");
            assert!(!error.to_string().contains(stage.folder()), "{error}");
        }
        let ended = run("printf one; sleep 0.05; printf two", Stay::forever()).unwrap();
        assert_eq!(ended.stdout, b"onetwo");
    }

    #[test]
    fn a_full_disk_is_no_fault_of_the_engine() {
        let stage = Stage::new();
        let subject =
            stage.subject(Side::B, "echo 'error: No space left on device (os error 28)' >&2; exit 1");
        let error = run(&subject, vec!["x".into()], Stay::forever(), &mut |_, _| {}).err().expect("it fails");
        assert!(error.downcast_ref::<Broken>().is_none(), "{error}");
        assert!(error.to_string().contains("the disk is full"), "{error}");
    }

    #[test]
    fn no_engine_is_given_what_the_user_tuned() {
        let stage = Stage::new();
        let subject = stage.subject(Side::A, "printf %s \"$ANNEAL_TUNING\"; [ ! -e \"$ANNEAL_TUNING\" ]");
        let ended = run(&subject, vec!["x".into()], Stay::forever(), &mut |_, _| {}).unwrap();
        assert_eq!(ended.stdout, NO_TUNING.as_bytes());
    }
}
