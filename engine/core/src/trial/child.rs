//! Parent side of a trial: starts a child process, sends requests to it, and determines why the child ended.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use llama::error::TrialCause as Cause;
use rustix::process::Signal;

use super::request::{COMMAND, TrialRequest, TrialVerdict};
use super::worker;
use crate::child_process::{LastWords, death, lines};

/// Number of last stderr lines to search for the reason why a child ended.
const LAST_WORDS: usize = 12;
/// Interval between two checks for an interrupt by the user.
const GLANCE: Duration = Duration::from_millis(20);
/// Time that a child has to exit after it has closed its output.
const ENDING: Duration = Duration::from_secs(2);

/// Prefix of the line on stderr that reports an abort of llama.cpp: see `give_up` in the shim
/// (vendor/llama-link/csrc/shim.cpp).
const CAUSE: &str = "caused by: ";
/// Part of the shim's message for a lack of memory or threads.
const OF_MEMORY: &str = "it could not allocate memory or start threads";
/// Part of the shim's message for a mapped file that was truncated.
const OF_FILE: &str = "a part of the mapped model file cannot be read";

/// Child process that runs trials, one after the other, until a trial ends the process. Dropping the value kills the
/// process.
pub struct Child {
    child: std::process::Child,
    /// Input of the child. Dropping this value closes the input.
    stdin: ChildStdin,
    answers: Receiver<String>,
    last_words: LastWords,
}

/// Reason why a child gave no answer. The child can accept no more requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The child ended, or was killed.
    Died {
        /// Description of how the child ended, in words that follow "its trial load".
        how: String,
        /// Cause of the end.
        cause: Cause,
    },
    /// The user interrupted this process.
    Interrupted,
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Child {
    /// Starts `program`, an `anneal` executable, as a child.
    ///
    /// # Errors
    /// If the system cannot start the program.
    pub fn start(program: &Path) -> io::Result<Self> {
        let mut command = Command::new(program);
        command.arg(COMMAND);
        std::env::vars_os().filter(|(name, _)| is_removed(name)).for_each(|(name, _)| {
            command.env_remove(name);
        });
        let mut child = command
            // The child uses no GPU: the GPU's memory may be full, and a fault on the GPU would affect other
            // processes.
            .env("CUDA_VISIBLE_DEVICES", "")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let listening = || match (stdin, stdout, stderr) {
            (Some(stdin), Some(stdout), Some(stderr)) => {
                Ok((stdin, lines(stdout)?, LastWords::listen(stderr, LAST_WORDS)?))
            }
            _ => Err(io::Error::other("no pipes")),
        };
        match listening() {
            Ok((stdin, answers, last_words)) => Ok(Self { child, stdin, answers, last_words }),
            Err(why) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(why)
            }
        }
    }

    /// Requests a trial and waits up to `patience` for its result.
    ///
    /// # Errors
    /// If no answer arrives. The child is then dead or unusable.
    pub fn ask(&mut self, request: &TrialRequest, patience: Duration) -> Result<TrialVerdict, End> {
        let begun = Instant::now();
        let line = serde_json::to_string(request).map_err(|why| End::Died {
            how: format!("could not be requested: {why}"),
            cause: Cause::Machine,
        })?;
        if writeln!(self.stdin, "{line}").and_then(|()| self.stdin.flush()).is_err() {
            return Err(self.end());
        }
        loop {
            match self.answers.recv_timeout(GLANCE) {
                Ok(line) => {
                    return serde_json::from_str(&line).map_err(|why| End::Died {
                        how: format!("gave an invalid answer: {why}"),
                        cause: Cause::Machine,
                    });
                }
                Err(RecvTimeoutError::Disconnected) => return Err(self.end()),
                Err(RecvTimeoutError::Timeout) if llama::interrupted() => return Err(End::Interrupted),
                Err(RecvTimeoutError::Timeout) if begun.elapsed() > patience => {
                    let _ = self.child.kill();
                    let seconds = patience.as_secs();
                    return Err(End::Died {
                        how: format!("took longer than {seconds} s and was killed"),
                        cause: Cause::Machine,
                    });
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Waits until a child that has closed its output exits, and returns the reason.
    fn end(&mut self) -> End {
        let begun = Instant::now();
        let mut status = None;
        while status.is_none() && begun.elapsed() < ENDING {
            status = self.child.try_wait().ok().flatten();
            std::thread::sleep(Duration::from_millis(1));
        }
        while !self.last_words.is_over() && begun.elapsed() < ENDING {
            std::thread::sleep(Duration::from_millis(1));
        }
        if llama::interrupted() {
            return End::Interrupted;
        }
        let said = self.last_words.lines();
        match status {
            Some(status) => told(status, &said),
            None => End::Died { how: "closed its output".to_string(), cause: Cause::Machine },
        }
    }
}

/// True for Anneal's own variables, which a child does not inherit. The request contains all settings that affect the
/// load (kernels, repacking, threads, adapters and RoPE scaling), and a variable must not override them.
///
/// Like the load itself, the child inherits the variables of llama.cpp ([`changes_llama_cpp`]), of the system and of
/// its libraries.
fn is_removed(name: &OsStr) -> bool {
    name.as_bytes().starts_with(b"ANNEAL_") && name != worker::TEST
}

/// True for variables by which llama.cpp chooses kernels and layouts, such as `GGML_CPU_TILED_MM`. A verdict is valid
/// only for the values of these variables.
pub(super) fn changes_llama_cpp(name: &OsStr) -> bool {
    [&b"GGML_"[..], b"LLAMA_"].iter().any(|prefix| name.as_bytes().starts_with(prefix))
}

/// Determines why the child ended from `status` and the last lines on stderr.
fn told(status: ExitStatus, said: &[String]) -> End {
    use std::os::unix::process::ExitStatusExt;
    let all = said.join("\n");
    if let Some(cause) = said.iter().rev().find_map(|line| line.strip_prefix(CAUSE)) {
        let lacks_memory = all.contains(OF_MEMORY);
        let (what, cause_of_end) = match lacks_memory {
            true => ("ran out of memory or threads", Cause::Machine),
            false => ("failed an assertion of llama.cpp", Cause::File),
        };
        return End::Died { how: format!("{what}: {cause}"), cause: cause_of_end };
    }
    if all.contains(OF_FILE) {
        return End::Died {
            how: "could not read a part of the file (SIGBUS)".to_string(),
            cause: Cause::Machine,
        };
    }
    let last = said.last().map_or(String::new(), |last| format!("; last message: {last}"));
    // The signal comes from the limit that `worker::allow_time` sets.
    if status.signal().is_some_and(|signal| signal == Signal::XCPU.as_raw()) {
        let how = format!("needed more CPU time than is allowed for a file of its size{last}");
        return End::Died { how, cause: Cause::CpuTime };
    }
    // A file can cause these faults. Other signals come from outside the process, or (illegal instruction) mean that
    // the CPU lacks a feature that the program needs.
    let is_fault = matches!(status.signal(), Some(6 | 7 | 8 | 11));
    // `cli::main` prints these words for a panic.
    let is_panic = all.contains("internal error");
    let cause = if is_fault || is_panic { Cause::File } else { Cause::Machine };
    End::Died { how: format!("{}{last}", death(status)), cause }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the end of a child that runs the shell script `script`.
    fn end_of(script: &str) -> End {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let program = folder.path().join("program");
        std::fs::write(&program, format!("#!/bin/sh\nread request\n{script}\n")).expect("a script");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        std::fs::set_permissions(&program, mode).expect("a program");
        let mut child = Child::start(&program).expect("it starts");
        child.ask(&TrialRequest::new(Vec::new()), Duration::from_secs(1)).expect_err("no answer")
    }

    #[test]
    fn the_end_of_a_child_is_told_and_kept_only_if_the_file_is_the_reason() {
        let assertion = "echo 'error: llama.cpp aborted: the model file' >&2\n\
                         echo '  caused by: llama.cpp/src/x.cpp:7: GGML_ASSERT(a == b) failed' >&2\n\
                         echo '  Try again' >&2\nexit 1";
        let memory = "echo 'error: llama.cpp aborted: it could not allocate memory or start threads' >&2\n\
                      echo '  caused by: std::bad_alloc' >&2\nexit 1";
        let cases = [
            (
                assertion,
                "failed an assertion of llama.cpp: llama.cpp/src/x.cpp:7: GGML_ASSERT(a == b) failed",
                Cause::File,
            ),
            (memory, "ran out of memory or threads: std::bad_alloc", Cause::Machine),
            (
                "echo 'load_tensors: layer 1' >&2; kill -SEGV $$",
                "crashed (signal 11); last message: load_tensors: layer 1",
                Cause::File,
            ),
            (
                "kill -KILL $$",
                "was killed (signal 9), probably by the kernel because memory ran out",
                Cause::Machine,
            ),
            ("kill -XCPU $$", "needed more CPU time than is allowed for a file of its size", Cause::CpuTime),
            ("kill -TERM $$", "crashed (signal 15)", Cause::Machine),
            ("exit 3", "ended with exit code 3", Cause::Machine),
            ("echo walked", "gave an invalid answer: expected value at line 1 column 1", Cause::Machine),
            ("sleep 60", "took longer than 1 s and was killed", Cause::Machine),
        ];
        for (script, how, cause) in cases {
            assert_eq!(end_of(script), End::Died { how: how.to_string(), cause }, "{script}");
        }
    }

    #[test]
    fn a_child_has_no_settings_but_those_of_its_request() {
        for (name, removed, of_llama_cpp) in [
            ("ANNEAL_THREADS", true, false),
            ("ANNEAL_CPU_VARIANT", true, false),
            ("ANNEAL_REPACK", true, false),
            ("ANNEAL_STATE_DIR", true, false),
            (worker::TEST, false, false),
            ("GGML_CPU_TILED_MM", false, true),
            ("LLAMA_ATTN_ROT_DISABLE", false, true),
            ("LD_LIBRARY_PATH", false, false),
            ("HOME", false, false),
        ] {
            let name = OsStr::new(name);
            assert_eq!((is_removed(name), changes_llama_cpp(name)), (removed, of_llama_cpp), "{name:?}");
        }
    }

    #[test]
    fn a_program_that_is_not_there_is_an_error() {
        assert!(Child::start(Path::new("/no/such/program")).is_err());
    }
}
