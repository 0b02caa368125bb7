//! Where entries come from: a terminal with a line editor and a history, or a pipe.

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

/// What was read.
pub enum Read {
    /// A whole entry.
    Text(String),
    /// Ctrl-C at the prompt, with something typed or nothing.
    Interrupted,
    /// The end of the input, or ctrl-D.
    End,
}

/// Entries one after the other.
pub enum Input {
    /// Typed.
    Terminal(Box<Terminal>),
    /// Lines of a pipe or a file.
    Pipe(io::StdinLock<'static>),
}

/// A line editor.
pub struct Terminal {
    editor: Editor<Lines, FileHistory>,
    history: Option<PathBuf>,
}

/// Entries that the history keeps.
const HISTORY: usize = 1000;

impl Input {
    /// A terminal whose history is in `history`, a file, or nowhere.
    ///
    /// # Errors
    /// When the terminal cannot be used.
    pub fn terminal(history: Option<PathBuf>) -> Result<Self> {
        let config = Config::builder()
            .max_history_size(HISTORY)
            .and_then(|config| config.history_ignore_dups(true))
            .context("cannot set up the line editor")?
            .history_ignore_space(true)
            .bell_style(BellStyle::None)
            // Stdout in a file is for answers.
            .behavior(if io::stdout().is_terminal() { Behavior::Stdio } else { Behavior::PreferTerm })
            .build();
        let mut editor = Editor::with_config(config).context("cannot use the terminal")?;
        editor.set_helper(Some(Lines));
        if let Some(path) = &history {
            load(&mut editor, path);
        }
        Ok(Input::Terminal(Box::new(Terminal { editor, history })))
    }

    /// The next entry.
    ///
    /// # Errors
    /// When nothing can be read.
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

    /// Notes `text` in the history at once: a program that ends otherwise has it all the same.
    fn keep(&mut self, text: &str) {
        let Some(path) = &self.history else { return };
        if text.trim().is_empty() || !self.editor.add_history_entry(text).unwrap_or(false) {
            return;
        }
        if let Err(error) = self.editor.append_history(path) {
            let _ = writeln!(
                io::stderr(),
                "warning: the history {} cannot be written ({error}): it is off now; --no-history leaves it out",
                path.display()
            );
            self.history = None;
        }
    }
}

fn load(editor: &mut Editor<Lines, FileHistory>, path: &Path) {
    if let Some(folder) = path.parent() {
        // Said when it is written to.
        let _ = std::fs::create_dir_all(folder);
    }
    match editor.load_history(path) {
        Err(ReadlineError::Io(error)) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => {
            let _ = writeln!(
                io::stderr(),
                "warning: the history {} cannot be read ({error}); --no-history leaves it out",
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
            .context("stdin is not UTF-8: convert it, for example with iconv -t UTF-8")?
            .trim_end_matches(['\n', '\r']);
        text.push_str(line);
        if entry::is_whole(&text) {
            return Ok(Read::Text(text));
        }
        text.push('\n');
    }
}

/// Tells the editor when Enter begins another line.
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
