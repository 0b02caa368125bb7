//! Output of watched programs, read by threads, and its presentation in errors and records.

use std::ffi::OsStr;
use std::io::Read;
use std::process::Command;
use std::sync::mpsc;
use std::thread::JoinHandle;

use super::words::last_lines;

/// Starts a thread that sends the stream's output in pieces as it arrives.
pub fn read(stream: Option<impl Read + Send + 'static>) -> (JoinHandle<()>, mpsc::Receiver<Vec<u8>>) {
    let (sender, receiver) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        let Some(mut stream) = stream else { return };
        let mut buffer = vec![0; 1 << 16];
        while let Ok(n @ 1..) = stream.read(&mut buffer) {
            if sender.send(buffer[..n].to_vec()).is_err() {
                return;
            }
        }
    });
    (reader, receiver)
}

/// Starts a thread that collects the stream's whole output. The thread reads continuously, because a full pipe would
/// block the program.
pub fn drain(stream: Option<impl Read + Send + 'static>) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut stream) = stream {
            // After a read error, the output up to the error is returned.
            let _ = stream.read_to_end(&mut bytes);
        }
        bytes
    })
}

/// Returns the command as typed in a shell, but with file names instead of absolute paths, for use in records.
pub fn line_without_folders(command: &Command) -> String {
    let word = |word: &OsStr| {
        let word = word.to_string_lossy();
        let word = if word.starts_with('/') { word.rsplit('/').next().unwrap_or(&word) } else { &word };
        base::shell_quote(word)
    };
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(word).collect::<Vec<_>>().join(" ")
}

/// Returns the last `most` lines of a failed program's output, for the end of an error message.
pub fn last_said(said: &[u8], most: usize) -> String {
    let text = String::from_utf8_lossy(said);
    let lines: Vec<&str> = text.trim().lines().collect();
    match lines.is_empty() {
        true => " and printed nothing".to_string(),
        false => last_lines(&lines, most),
    }
}
