//! Yes-or-no prompts.

use std::io::Write;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use crate::process;

/// Prints `question` to standard error and returns true if the user answers yes or presses Enter. The end of the
/// input and ctrl-C count as no.
pub fn confirm(question: &str) -> bool {
    let mut err = std::io::stderr();
    let _ = write!(err, "{question} [Y/n] ");
    let _ = err.flush();
    // Another thread reads the line: ctrl-C does not end the read, because the system restarts a read after a handled
    // signal.
    let (sender, answers) = mpsc::channel();
    std::thread::spawn(move || {
        let mut line = String::new();
        let read = std::io::stdin().read_line(&mut line);
        let _ = sender.send(read.map(|read| (read > 0).then_some(line)));
    });
    let answer = loop {
        match answers.recv_timeout(Duration::from_millis(50)) {
            _ if process::interrupted() => {
                let _ = writeln!(err);
                break None;
            }
            Err(RecvTimeoutError::Timeout) => {}
            Ok(Ok(answer)) => break answer,
            Ok(Err(_)) | Err(RecvTimeoutError::Disconnected) => break None,
        }
    };
    answer.is_some_and(|answer| matches!(answer.trim().to_lowercase().as_str(), "" | "y" | "yes"))
}
