//! Input of a chat: a terminal with a line editor and a history, or a pipe.

use std::io::{self, BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use rustyline::completion::Completer;
use rustyline::config::{Behavior, BellStyle, Config};
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Editor, Helper};

use super::entry;

/// Result of reading an entry.
pub enum Read {
    /// A complete entry.
    Text(String),
    /// Ctrl-C at the prompt.
    Interrupted,
    /// End of the input, or ctrl-D.
    End,
}

/// Source of entries.
pub enum Input {
    /// Terminal with a line editor.
    Terminal(Box<Terminal>),
    /// Lines of a pipe or a file.
    Pipe(io::StdinLock<'static>),
}

/// Line editor with a history.
pub struct Terminal {
    editor: Editor<Lines, FileHistory>,
    history: Option<PathBuf>,
}

/// Maximum number of entries in the history.
const HISTORY: usize = 1000;

impl Input {
    /// Opens the terminal. The history is kept in the file `history`, if given.
    ///
    /// # Errors
    /// If the terminal cannot be used.
    pub fn terminal(history: Option<PathBuf>) -> Result<Self> {
        let config = Config::builder()
            .max_history_size(HISTORY)
            .and_then(|config| config.history_ignore_dups(true))
            .context("cannot set up the line editor")?
            .history_ignore_space(true)
            .bell_style(BellStyle::None)
            // If stdout is a file, only answers may be written to it.
            .behavior(if io::stdout().is_terminal() { Behavior::Stdio } else { Behavior::PreferTerm })
            .build();
        let mut editor = Editor::with_config(config).context("cannot use the terminal")?;
        editor.set_helper(Some(Lines));
        if let Some(path) = &history {
            load(&mut editor, path);
        }
        Ok(Input::Terminal(Box::new(Terminal { editor, history })))
    }

    /// Reads the next entry.
    ///
    /// # Errors
    /// If the input cannot be read.
    pub fn next(&mut self) -> Result<Read> {
        match self {
            Input::Terminal(terminal) => terminal.next(),
            Input::Pipe(lines) => from_pipe(lines),
        }
    }
}

impl Terminal {
    fn next(&mut self) -> Result<Read> {
        match self.editor.readline("> ") {
            Ok(text) => {
                self.keep(&text);
                Ok(Read::Text(text))
            }
            Err(ReadlineError::Interrupted) => Ok(Read::Interrupted),
            Err(ReadlineError::Eof) => Ok(Read::End),
            Err(error) => Err(error).context("cannot read from the terminal"),
        }
    }

    /// Appends `text` to the history file immediately, so that the entry is kept even if the program is killed.
    fn keep(&mut self, text: &str) {
        let Some(path) = &self.history else { return };
        if text.trim().is_empty() || !self.editor.add_history_entry(text).unwrap_or(false) {
            return;
        }
        if let Err(error) = self.editor.append_history(path) {
            let _ = writeln!(
                io::stderr(),
                "warning: cannot write the history {} ({error}); further input is not saved\nhint: use --no-history \
                to turn the history off",
                path.display()
            );
            self.history = None;
        }
    }
}

fn load(editor: &mut Editor<Lines, FileHistory>, path: &Path) {
    if let Some(folder) = path.parent() {
        // If the folder cannot be created, writing the history reports an error.
        let _ = std::fs::create_dir_all(folder);
    }
    match editor.load_history(path) {
        Err(ReadlineError::Io(error)) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => {
            let _ = writeln!(
                io::stderr(),
                "warning: cannot read the history {} ({error})\nhint: use --no-history to turn the history off",
                path.display()
            );
        }
        Ok(()) => {}
    }
}

fn from_pipe(lines: &mut impl BufRead) -> Result<Read> {
    let mut text = String::new();
    loop {
        let mut bytes = Vec::new();
        if lines.read_until(b'\n', &mut bytes).context("cannot read from stdin")? == 0 {
            return Ok(if text.is_empty() { Read::End } else { Read::Text(text) });
        }
        let line = std::str::from_utf8(&bytes)
            .context("stdin is not valid UTF-8\nhint: convert it, for example with iconv -t UTF-8")?
            .trim_end_matches(['\n', '\r']);
        text.push_str(line);
        if entry::is_whole(&text) {
            return Ok(Read::Text(text));
        }
        text.push('\n');
    }
}

/// Editor helper that decides whether Enter begins another line.
struct Lines;

impl Validator for Lines {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(match entry::is_whole(context.input()) {
            true => ValidationResult::Valid(None),
            false => ValidationResult::Incomplete,
        })
    }
}

impl Helper for Lines {}
impl Highlighter for Lines {}
impl Completer for Lines {
    type Candidate = String;
}
impl Hinter for Lines {
    type Hint = String;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_gives_entries() {
        let mut lines = "a\r\nb\\\nc\n\n\"\"\"\nd\n\ne\n\"\"\"\nf\\".as_bytes();
        let mut texts = Vec::new();
        while let Read::Text(text) = from_pipe(&mut lines).expect("text") {
            texts.push(text);
        }
        assert_eq!(texts, ["a", "b\\\nc", "", "\"\"\"\nd\n\ne\n\"\"\"", "f\\\n"]);
        assert!(from_pipe(&mut &b"\xff\n"[..]).is_err());
    }
}
