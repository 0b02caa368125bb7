//! Reads the output of child processes that answer line by line, and describes why they ended.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read};
use std::process::ExitStatus;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

/// Maximum length of a line in bytes. Answers are short, but a malformed file may corrupt a child's memory, and the
/// child may then print anything.
const LONGEST: u64 = 1 << 20;

/// Returns the lines of `stream` as they arrive. Stops at a line that is longer than 1 MiB.
///
/// # Errors
/// If no thread can be started.
pub fn lines(stream: impl Read + Send + 'static) -> io::Result<Receiver<String>> {
    let (sender, receiver) = channel();
    Builder::new().spawn(move || {
        let mut stream = BufReader::new(stream);
        loop {
            let mut line = String::new();
            match (&mut stream).take(LONGEST).read_line(&mut line) {
                Ok(1..) if line.ends_with('\n') => {}
                _ => return,
            }
            if sender.send(line.trim_end().to_string()).is_err() {
                return;
            }
        }
    })?;
    Ok(receiver)
}

/// Last lines that a child printed on stderr.
pub struct LastWords {
    lines: Arc<Mutex<VecDeque<String>>>,
    listener: JoinHandle<()>,
}

impl LastWords {
    /// Reads `stream` and keeps its last `most` lines.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn listen(stream: impl Read + Send + 'static, most: usize) -> io::Result<Self> {
        let lines = Arc::new(Mutex::new(VecDeque::new()));
        let last = Arc::clone(&lines);
        let listener = Builder::new().spawn(move || {
            let mut stream = BufReader::new(stream);
            let mut line = Vec::new();
            while matches!((&mut stream).take(LONGEST).read_until(b'\n', &mut line), Ok(1..)) {
                let text = String::from_utf8_lossy(&line).trim().chars().take(300).collect::<String>();
                line.clear();
                let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
                if !text.is_empty() {
                    last.push_back(text);
                }
                if last.len() > most {
                    last.pop_front();
                }
            }
        })?;
        Ok(LastWords { lines, listener })
    }

    /// True if the child has closed its stderr, so that no more lines will arrive.
    pub fn is_over(&self) -> bool {
        self.listener.is_finished()
    }

    /// Returns the last lines printed so far.
    pub fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

/// Describes how a child process ended, as the predicate of a sentence.
pub fn death(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.signal(), status.code()) {
        (Some(9), _) => "was killed (signal 9), probably by the kernel because memory ran out".to_string(),
        (Some(4), _) => "crashed with an illegal instruction (signal 4)".to_string(),
        (Some(signal), _) => format!("crashed (signal {signal})"),
        (None, Some(code)) => format!("ended with exit code {code}"),
        (None, None) => "ended".to_string(),
    }
}
