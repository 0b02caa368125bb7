//! What a person sees: progress, tables, errors. Standard output carries only the result of a command; all
//! else goes to standard error.

mod confirm;
mod global;
mod progress;
mod reasons;
mod symbol;
mod table;

use std::fmt::Display;
use std::io::{IsTerminal, Write};

use anyhow::{Context, Result};
use build_info::words;
use serde::Serialize;

use base::exit;
pub use confirm::confirm;
pub use global::Global;
pub use progress::Progress;
pub use reasons::{page_width, reasons};
pub use symbol::demangled;
pub use table::{columns, gains, stage_times, width};

/// How to speak to the user.
#[derive(Clone, Debug)]
pub struct Ui {
    json: bool,
    quiet: bool,
    verbose: bool,
    terminal: bool,
    color: bool,
}

impl Ui {
    /// As the flags and the terminal ask for.
    pub fn new(global: &Global) -> Self {
        let terminal = std::io::stderr().is_terminal();
        // https://no-color.org: set and not empty.
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Self {
            json: global.json,
            quiet: global.quiet,
            verbose: global.verbose > 0,
            terminal: terminal && !dumb,
            color: terminal && !no_color && !dumb,
        }
    }

    /// The same with the flags of `more`, which stood among the arguments of another program.
    ///
    /// # Errors
    /// When both would be quiet and verbose: wrong usage.
    pub fn with(&self, more: &Global) -> Result<Self> {
        let (quiet, verbose) = (self.quiet || more.quiet, self.verbose || more.verbose > 0);
        if quiet && verbose {
            return Err(exit::usage("-q and -v exclude each other: give one"));
        }
        Ok(Self { json: self.json || more.json, quiet, verbose, ..self.clone() })
    }

    /// Whether external commands are echoed.
    pub fn verbose(&self) -> bool {
        self.verbose
    }

    /// Whether nothing but the result, warnings and errors is wanted.
    pub fn quiet(&self) -> bool {
        self.quiet
    }

    /// Prints the result of a command: as JSON with `--json`, else as text.
    pub fn result(&self, value: &impl Serialize, text: impl Display) -> Result<()> {
        let text = if self.json {
            format!("{}\n", serde_json::to_string_pretty(value)?)
        } else {
            let text = text.to_string();
            // Names in files that others wrote are part of it.
            let text = words::printable_lines(&text);
            if text.is_empty() || text.ends_with('\n') { text.into_owned() } else { format!("{text}\n") }
        };
        // A reader that has seen enough (`| head`) is no error.
        match std::io::stdout().write_all(text.as_bytes()) {
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
            other => other.context("cannot write the result to stdout"),
        }
    }

    /// Tells what is going on. Nothing with `-q`.
    pub fn say(&self, text: impl Display) {
        if !self.quiet {
            let _ = writeln!(std::io::stderr(), "{}", words::printable_lines(&text.to_string()));
        }
    }

    /// Tells of something that is done.
    pub fn done(&self, what: &str, detail: impl Display) {
        if !self.quiet {
            let what = self.paint("32;1", &format!("{what:>11}"));
            let _ = writeln!(std::io::stderr(), "{what} {}", words::printable_lines(&detail.to_string()));
        }
    }

    /// Tells something that a person should know; also with `-q`.
    pub fn warn(&self, text: impl Display) {
        let text = text.to_string();
        let text = words::printable_lines(&text);
        let _ = writeln!(std::io::stderr(), "{} {text}", self.paint("33;1", "    warning"));
    }

    /// Prints an error and its causes.
    pub fn error(&self, error: &anyhow::Error) {
        let mut err = std::io::stderr();
        let said = words::chain(error.as_ref());
        let begin = std::iter::once(self.paint("31;1", "error:"))
            .chain(std::iter::repeat("  caused by:".to_string()));
        for (begin, text) in begin.zip(&said) {
            // Of several lines is what a tool printed.
            let _ = writeln!(err, "{begin} {}", words::printable_lines(text));
        }
    }

    /// Starts showing the progress of a stage.
    pub fn progress(&self, stage: &str) -> Progress {
        Progress::new(stage, self.terminal, self.quiet, self.color)
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.color { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_string() }
    }
}
