//! User interface: progress, tables and errors. Standard output carries only the result of a command; everything else
//! goes to standard error.

mod confirm;
mod global;
mod progress;
mod reasons;
mod symbol;
mod table;

use std::fmt::Display;
use std::io::Write;

use anyhow::{Context, Result};
use build_info::words;
use serde::Serialize;

use base::{colour, exit};
pub use confirm::confirm;
pub use global::Global;
pub use progress::Progress;
pub use reasons::{page_width, reasons};
pub use symbol::demangled;
pub use table::{columns, gains, stage_times, width};

use crate::full_disk;

/// Output settings.
#[derive(Clone, Debug)]
pub struct Ui {
    json: bool,
    quiet: bool,
    verbose: bool,
    terminal: bool,
    color: bool,
}

impl Ui {
    /// Creates the settings from the flags and the properties of the terminal.
    pub fn new(global: &Global) -> Self {
        let terminal = colour::is_capable();
        Self {
            json: global.json,
            quiet: global.quiet,
            verbose: global.verbose > 0,
            terminal,
            color: terminal && !colour::are_unwanted(),
        }
    }

    /// Returns the settings combined with `more`, flags that appeared among the arguments of another program.
    ///
    /// # Errors
    /// A usage error if the result would be both quiet and verbose.
    pub fn with(&self, more: &Global) -> Result<Self> {
        let (quiet, verbose) = (self.quiet || more.quiet, self.verbose || more.verbose > 0);
        if quiet && verbose {
            return Err(exit::usage("-q cannot be used with -v"));
        }
        Ok(Self { json: self.json || more.json, quiet, verbose, ..self.clone() })
    }

    /// True if external commands are printed.
    pub fn verbose(&self) -> bool {
        self.verbose
    }

    /// True if only the result, warnings and errors are printed.
    pub fn quiet(&self) -> bool {
        self.quiet
    }

    /// Prints the result of a command: as JSON with `--json`, else as text.
    ///
    /// # Errors
    /// If the value cannot be serialised or standard output cannot be written.
    pub fn result(&self, value: &impl Serialize, text: impl Display) -> Result<()> {
        let text = if self.json {
            format!("{}\n", serde_json::to_string_pretty(value)?)
        } else {
            let text = text.to_string();
            // The text may contain names from files that others wrote, so control characters are removed.
            let text = words::printable_lines(&text);
            if text.is_empty() || text.ends_with('\n') { text.into_owned() } else { format!("{text}\n") }
        };
        // A reader that has closed the pipe, as in `| head`, is not an error.
        match std::io::stdout().write_all(text.as_bytes()) {
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
            other => other.context("cannot write the result to stdout"),
        }
    }

    /// Prints a message about the progress, unless `-q` is set.
    pub fn say(&self, text: impl Display) {
        if !self.quiet {
            let _ = writeln!(std::io::stderr(), "{}", words::printable_lines(&text.to_string()));
        }
    }

    /// Prints a finished step.
    pub fn done(&self, what: &str, detail: impl Display) {
        if !self.quiet {
            let what = self.paint("32;1", &format!("{what:>11}"));
            let _ = writeln!(std::io::stderr(), "{what} {}", words::printable_lines(&detail.to_string()));
        }
    }

    /// Prints a warning, even with `-q`.
    pub fn warn(&self, text: impl Display) {
        let text = text.to_string();
        let text = words::printable_lines(&text);
        let _ = writeln!(std::io::stderr(), "{} {text}", self.paint("33;1", "    warning"));
    }

    /// Prints an error and its causes, and then the hints.
    pub fn error(&self, error: &anyhow::Error) {
        let _ = write!(std::io::stderr(), "{}", error_text(error, &self.paint(colour::ERROR, "error:")));
    }

    /// Starts the progress display of a stage.
    pub fn progress(&self, stage: &str) -> Progress {
        Progress::new(stage, self.terminal, self.quiet, self.color)
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.color { colour::with_code(code, text) } else { text.to_string() }
    }
}

/// Returns the lines that report `error`, which begin with `begin`.
fn error_text(error: &anyhow::Error, begin: &str) -> String {
    let fallback = full_disk::caused(error).then_some(full_disk::FREE_SPACE);
    // A cause with several lines contains the output of a tool.
    words::report(error.as_ref(), begin, fallback, words::printable_lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_follow_the_last_cause() {
        let error = anyhow::anyhow!("the folder is damaged\nhint: make it again\n  with mkdir")
            .context("cannot read x\nhint: check the path")
            .context("cannot build");
        assert_eq!(
            error_text(&error, "error:"),
            "error: cannot build\n  caused by: cannot read x\n  caused by: the folder is damaged\nhint: check the \
             path\nhint: make it again\n  with mkdir\n"
        );
        assert_eq!(error_text(&anyhow::anyhow!("no x"), "error:"), "error: no x\n");
    }

    #[test]
    fn a_full_disk_has_a_hint_of_its_own() {
        let full = std::io::Error::from(std::io::ErrorKind::StorageFull);
        let text = error_text(&anyhow::Error::from(full).context("cannot write x"), "error:");
        assert!(text.ends_with(&format!("\nhint: {}\n", full_disk::FREE_SPACE)), "{text}");
    }
}
