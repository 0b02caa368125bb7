//! What a program that is watched prints, read by threads; and what is told of it.

use std::ffi::OsStr;
use std::io::Read;
use std::process::Command;
use std::sync::mpsc;
use std::thread::JoinHandle;

use super::words::last_lines;

/// Its output, piece by piece as it comes.
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

/// All of its output at its end. Read all the while: a full pipe would stop the program.
pub fn drain(stream: Option<impl Read + Send + 'static>) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut stream) = stream {
            // What was read until an error is what there is to show.
            let _ = stream.read_to_end(&mut bytes);
        }
        bytes
    })
}

/// The command as one would type it, without folders: it goes into records.
pub fn line_without_folders(command: &Command) -> String {
    let word = |word: &OsStr| {
        let word = word.to_string_lossy();
        let word = if word.starts_with('/') { word.rsplit('/').next().unwrap_or(&word) } else { &word };
        base::shell_quote(word)
    };
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(word).collect::<Vec<_>>().join(" ")
}

/// The last `most` lines of what a program said of its failure, to be put behind the words that it failed.
pub fn last_said(said: &[u8], most: usize) -> String {
    let text = String::from_utf8_lossy(said);
    let lines: Vec<&str> = text.trim().lines().collect();
    match lines.is_empty() {
        true => " and said nothing".to_string(),
        false => last_lines(&lines, most),
    }
}
