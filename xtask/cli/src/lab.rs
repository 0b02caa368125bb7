//! Commands that only measure. They are in a separate program, the lab. Cargo compiles the lab when it is first used,
//! so that the first build does not wait for it.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result};
use build::program;
use build::ui::{Global, Ui};
use build::workspace::Workspace;

/// Names of the commands of the lab.
pub const COMMANDS: [&str; 7] =
    ["bench", "gpu-check", "optimize", "recommend", "report", "upgrade", "validate"];

/// Returns the global options if `words`, the arguments of this program, contain a lab command or ask for its help. The
/// lab parses all words again and reports other errors in them.
pub fn is_asked(words: impl IntoIterator<Item = OsString>) -> Option<Global> {
    let words: Vec<String> = words.into_iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let mut rest = words.iter().skip_while(|word| is_global(word));
    let named = match rest.next()?.as_str() {
        "help" => rest.next()?.as_str(),
        name => name,
    };
    let has = |long: &str, short: char| {
        words.iter().any(|word| word == long || (is_short(word) && word.contains(short)))
    };
    let quiet = has("--quiet", 'q');
    COMMANDS.contains(&named).then(|| Global {
        json: has("--json", ' '),
        quiet,
        // `--verbose` and `--quiet` together are a usage error, which the lab reports.
        verbose: u8::from(has("--verbose", 'v') && !quiet),
    })
}

/// True if `word` is a global option.
fn is_global(word: &str) -> bool {
    ["--json", "--quiet", "--verbose"].contains(&word) || is_short(word)
}

/// True if `word` is `-q`, `-v` or a combination of them.
fn is_short(word: &str) -> bool {
    word.strip_prefix('-')
        .is_some_and(|flags| !flags.is_empty() && flags.chars().all(|flag| "qv".contains(flag)))
}

/// Replaces this process with the lab, which gets the same arguments.
///
/// # Errors
/// If the lab cannot be compiled or run.
pub fn run(ui: &Ui) -> Result<()> {
    let workspace = Workspace::find()?;
    let program = program::compiled_beside("lab", "measures", &workspace, ui)?;
    let own = std::env::current_exe().context("cannot find the path of this program")?;
    let error = Command::new(&program).args(std::env::args_os().skip(1)).env(program::XTASK, own).exec();
    Err(error).with_context(|| format!("cannot run {}", program.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(line: &str) -> Option<Global> {
        is_asked(line.split_whitespace().map(OsString::from))
    }

    #[test]
    fn commands_of_the_lab_are_known_by_their_place() {
        for line in [
            "bench",
            "optimize --help",
            "--json report x.json",
            "-qv validate a b",
            "help recommend",
            "help bench compare",
            "--verbose gpu-check run",
            "upgrade --to latest",
        ] {
            assert!(asked(line).is_some(), "{line}");
        }
        for line in [
            "",
            "build-native",
            "test bench",
            "--help bench",
            "-V",
            "--bogus bench",
            "help",
            "help build",
            "--",
        ] {
            assert!(asked(line).is_none(), "{line}");
        }
    }

    #[test]
    fn options_of_every_command_are_found_before_and_behind_the_name() {
        let global = asked("--json bench -q").unwrap();
        assert!(global.json && global.quiet && global.verbose == 0);
        assert_eq!(asked("bench -v").unwrap().verbose, 1);
        assert!(!asked("bench --pairs 3").unwrap().quiet);
    }
}
