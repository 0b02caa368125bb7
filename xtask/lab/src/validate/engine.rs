//! Runs an engine while it is watched.

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

/// Lines of a failed program that an error shows.
const TAIL: usize = 8;

/// A tuning record that is not there: nothing is tuned, and the engine says nothing of it.
const NO_TUNING: &str = "/nonexistent/anneal-tuning.json";

/// How often a run is looked at while it prints nothing.
const TICK: Duration = Duration::from_millis(20);

/// How long a run may take.
#[derive(Clone, Copy, Debug)]
pub struct Stay(Option<Duration>);

impl Stay {
    /// As long as it wants: ctrl-C ends it.
    pub fn forever() -> Self {
        Self(None)
    }

    /// What B is given for what took A so long: that it hangs is to be told, and not that it is slow.
    pub fn after(a: f64) -> Self {
        Self(Some(
            Duration::from_secs(60)
                .saturating_add(Duration::try_from_secs_f64(20.0 * a).unwrap_or(Duration::MAX)),
        ))
    }

    /// So long.
    #[cfg(test)]
    pub fn for_at_most(time: Duration) -> Self {
        Self(Some(time))
    }
}

/// Something to look at while an engine runs.
pub enum EngineEvent<'a> {
    /// It printed this on standard output.
    Output(&'a [u8]),
    /// Time passed.
    Tick,
}

/// A run that ended well.
pub struct Ended {
    /// What it printed.
    pub stdout: Vec<u8>,
    /// How long it took.
    pub seconds: f64,
}

/// An engine did not do what it was asked: of B that is a verdict.
#[derive(Debug)]
pub struct Broken {
    /// Whose engine.
    pub side: Side,
    /// What it exited with, if it did by itself.
    pub code: Option<i32>,
    why: String,
}

impl Broken {
    /// `side` broke for this reason.
    pub fn new(side: Side, why: String) -> Self {
        Self { side, code: None, why }
    }

    /// Whether it did not understand what it was asked.
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

/// Runs the engine of `subject` with `arguments`, the command first, and its own flags. `each` hears of what it prints
/// as it comes, with the number of the process.
///
/// # Errors
/// [`Broken`] when it cannot be started, fails, is killed or stays too long; another error when the disk is full, which
/// is no engine's fault; an interruption when the user stopped it.
pub fn run(
    subject: &Subject,
    arguments: Vec<OsString>,
    stay: Stay,
    each: &mut dyn FnMut(u32, EngineEvent<'_>),
) -> Result<Ended> {
    process::check_interrupted()?;
    let mut command = Command::new(subject.program());
    command.args(arguments).args(&subject.flags);
    // `run` would take what the user tuned, `bench` and `logits` do not: all of them are to run with the same settings.
    command.env("ANNEAL_TUNING", NO_TUNING);
    let line = line_without_folders(&command);
    let broken = |why: String| anyhow::Error::from(Broken::new(subject.side, why));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // A group of its own: ctrl-C reaches us alone, and we stop it.
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
            bail!("{why}\n  the disk is full: free some space, then run the same again");
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
            // Who never pauses is looked at, too.
            ("while :; do echo sleep; done", "did not end within"),
        ];
        for (script, words) in cases {
            let stay =
                Stay::for_at_most(Duration::from_millis(if script.contains("sleep") { 200 } else { 60_000 }));
            let error = run(script, stay).err().expect("it fails");
            let broken = error.downcast_ref::<Broken>().expect("of the engine's doing");
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
