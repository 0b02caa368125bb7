//! Commands and their output as text.

use std::process::Command;

/// Returns the command as it would be typed in a shell.
pub fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| base::shell_quote(&word.to_string_lossy())).collect::<Vec<_>>().join(" ")
}

/// Returns the last `most` of `lines`, for the end of an error message.
pub fn last_lines(lines: &[&str], most: usize) -> String {
    if lines.is_empty() {
        return " and printed nothing".to_string();
    }
    format!("; its last lines:\n    {}", lines[lines.len().saturating_sub(most)..].join("\n    "))
}

/// Returns the beginning of a long command line.
pub fn short(line: &str) -> String {
    const MOST: usize = 160;
    if line.chars().count() <= MOST {
        return line.to_string();
    }
    format!("{} …", line.chars().take(MOST).collect::<String>())
}
