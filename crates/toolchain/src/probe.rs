//! Queries a program's version, with limits on time and output. The program may behave in any way.

use std::io::{ErrorKind, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// Maximum number of bytes that are read; every tool prints less.
const OUTPUT_LIMIT: u64 = 64 << 10;

/// Reason why the program gave no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The program cannot be run, or fails.
    Failed,
    /// The program did not finish in time. The program may still be usable if the machine is overloaded.
    OutOfTime,
}

/// Returns the standard output of `program` with `args` if it succeeds within `limit`.
pub(crate) fn ask(program: &Path, args: &[&str], limit: Duration) -> Result<String, Refusal> {
    let until = Instant::now() + limit;
    let mut child = spawn(program, args).ok_or(Refusal::Failed)?;
    let mut output = child.stdout.take().ok_or(Refusal::Failed)?;
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut text = Vec::new();
        let read = output.by_ref().take(OUTPUT_LIMIT).read_to_end(&mut text);
        // After a timeout, the text has no receiver.
        let _ = sender.send(read.map(|_| text));
    });
    let text = receiver.recv_timeout(limit);
    let status = text.is_ok().then(|| wait(&mut child, until)).flatten();
    if status.is_none() {
        kill_group(&mut child);
    }
    match (status, text) {
        (None, _) | (_, Err(_)) => Err(Refusal::OutOfTime),
        (Some(status), Ok(Ok(text))) if status.success() => Ok(String::from_utf8_lossy(&text).into_owned()),
        (Some(_), Ok(_)) => Err(Refusal::Failed),
    }
}

fn spawn(program: &Path, args: &[&str]) -> Option<Child> {
    let mut command = Command::new(program);
    // The program gets its own process group, so that its children can be killed with it.
    command.args(args).env("LC_ALL", "C").process_group(0);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    for _ in 0..20 {
        match command.spawn() {
            Ok(child) => return Some(child),
            // The file is being written, by a package manager or through a descriptor that a fork of this process
            // inherited (`ETXTBSY`).
            Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => {
                thread::sleep(Duration::from_millis(10))
            }
            Err(_) => return None,
        }
    }
    None
}

fn wait(child: &mut Child, until: Instant) -> Option<std::process::ExitStatus> {
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < until => thread::sleep(Duration::from_millis(1)),
            _ => return None,
        }
    }
}

/// Kills the child and all processes that the child started. The shell's `kill` reaches a process group without
/// unsafe code in this crate.
fn kill_group(child: &mut Child) {
    let _ = Command::new("/bin/sh")
        .args(["-c", "kill -KILL -- \"-$1\"", "sh", &child.id().to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    let _ = child.kill();
    let _ = child.wait();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Machine;

    #[test]
    fn any_behaviour_of_a_program_is_survived() {
        let machine = Machine::new();
        let cases = [
            ("good", "echo 1.2.3", Ok("1.2.3\n")),
            ("silent", "exit 0", Ok("")),
            ("fails", "echo 1.2.3; exit 1", Err(Refusal::Failed)),
            ("crashes", "kill -SEGV $$", Err(Refusal::Failed)),
            ("hangs", "sleep 60", Err(Refusal::OutOfTime)),
            ("hangs_in_a_child", "sleep 60 & wait", Err(Refusal::OutOfTime)),
            ("leaves_a_daemon", "sleep 60 & echo 1.2.3", Err(Refusal::OutOfTime)),
            ("hangs_after_closing", "exec >&-; sleep 60", Err(Refusal::OutOfTime)),
            (
                "floods",
                "while :; do echo yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy; done",
                Err(Refusal::Failed),
            ),
        ];
        for (name, script, expected) in cases {
            let program = machine.script(&format!("bin/{name}"), script);
            let begin = Instant::now();
            // Programs that end on their own get more time, because the machine may be busy.
            let limit = match expected {
                Err(Refusal::OutOfTime) => Duration::from_millis(400),
                _ => Duration::from_secs(20),
            };
            let answer = ask(&program, &[], limit);
            assert_eq!(answer.as_deref().map_err(|refusal| *refusal), expected, "{name}");
            assert!(begin.elapsed() < Duration::from_secs(30), "{name} took {:?}", begin.elapsed());
        }
        let garbage = machine.script("bin/garbage", r"printf '\377\376\0'");
        assert_eq!(ask(&garbage, &[], Duration::from_secs(3)).as_deref(), Ok("\u{fffd}\u{fffd}\0"));
        let not_a_program = machine.file("bin/text", "no program");
        assert_eq!(ask(&not_a_program, &[], Duration::from_secs(3)), Err(Refusal::Failed));
    }
}
