//! Programs that the fetchers run, and their environment.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, bail};

/// Paths of the programs that the fetchers run. Each origin needs one of these programs; patches also need git.
#[derive(Clone, Debug)]
pub struct Tools {
    /// Path of cargo, for [`Origin::Crate`](crate::origin::Origin::Crate).
    pub cargo: PathBuf,
    /// Path of Python with pip, for [`Origin::Sdist`](crate::origin::Origin::Sdist).
    pub python: PathBuf,
    /// Path of git, for [`Origin::Git`](crate::origin::Origin::Git) and for patches.
    pub git: PathBuf,
}

/// Program that may be missing on a machine. Cargo is always present, because it runs this program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceTool {
    /// The program git.
    Git,
    /// The Python module pip.
    Pip,
}

impl Default for Tools {
    /// Returns the cargo that runs this program, and `python3` and `git` from the PATH.
    fn default() -> Self {
        let cargo = std::env::var_os("CARGO").filter(|cargo| !cargo.is_empty());
        Self {
            cargo: cargo.unwrap_or_else(|| OsString::from("cargo")).into(),
            python: "python3".into(),
            git: "git".into(),
        }
    }
}

impl Tools {
    /// Creates a cargo command that only sees the user's own configuration. If a build script calls this function,
    /// the environment contains cargo's flags, wrappers (for example, clippy's), job server and paths, which are
    /// meant for another package.
    pub(crate) fn cargo(&self) -> Command {
        /// Variables set by the user that locate folders or configure the network.
        const KEPT: [&str; 8] = [
            "CARGO_HOME",
            "CARGO_HTTP_",
            "CARGO_NET_",
            "CARGO_REGISTRIES_",
            "CARGO_REGISTRY_",
            "CARGO_SOURCE_",
            "CARGO_TERM_",
            "CARGO_CACHE_",
        ];
        const DISTURBING: [&str; 6] =
            ["RUSTFLAGS", "RUSTDOCFLAGS", "RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER", "MAKEFLAGS", "MFLAGS"];
        let mut command = Command::new(&self.cargo);
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            let kept = KEPT.iter().any(|kept| text.starts_with(kept));
            if (text.starts_with("CARGO_") && !kept) || DISTURBING.contains(&&*text) {
                command.env_remove(&name);
            }
        }
        command
    }

    /// Creates a git command that ignores any surrounding repository. If a git hook runs this program, the
    /// environment names the hook's repository.
    pub(crate) fn git(&self) -> Command {
        let mut command = Command::new(&self.git);
        for name in [
            "GIT_DIR",
            "GIT_WORK_TREE",
            "GIT_INDEX_FILE",
            "GIT_OBJECT_DIRECTORY",
            "GIT_ALTERNATE_OBJECT_DIRECTORIES",
            "GIT_COMMON_DIR",
            "GIT_NAMESPACE",
            "GIT_PREFIX",
        ] {
            command.env_remove(name);
        }
        // Files keep their committed bytes, even if the user configured other line endings. git must not prompt.
        command.args(["-c", "core.autocrlf=false", "-c", "core.eol=lf"]).env("GIT_TERMINAL_PROMPT", "0");
        command
    }

    pub(crate) fn python(&self) -> Command {
        Command::new(&self.python)
    }
}

/// Runs `command` without a terminal. An error contains the command and the end of its output. `install` is the hint
/// for a missing program.
pub(crate) fn run(command: &mut Command, install: &str) -> Result<Output> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = match command.stdin(Stdio::null()).output() {
        Ok(output) => output,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            bail!("cannot find the program `{program}`: {install}")
        }
        Err(error) => return Err(error).with_context(|| format!("cannot run `{}`", line(command))),
    };
    if output.status.success() {
        return Ok(output);
    }
    bail!("`{}` failed ({}):\n{}", line(command), output.status, tail(&output))
}

/// Formats `command` as a shell command line.
fn line(command: &Command) -> String {
    let quoted = |word: &std::ffi::OsStr| base::shell_quote(&word.to_string_lossy());
    let words: Vec<_> =
        std::iter::once(command.get_program()).chain(command.get_args()).map(quoted).collect();
    words.join(" ")
}

/// Returns the last lines of a program's standard error, or of its standard output if standard error is empty.
fn tail(output: &Output) -> String {
    const LINES: usize = 20;
    let printed = if output.stderr.is_empty() { &output.stdout } else { &output.stderr };
    let text = String::from_utf8_lossy(printed);
    let lines: Vec<_> = text.trim_end().lines().collect();
    let kept = &lines[lines.len().saturating_sub(LINES)..];
    kept.iter().map(|line| format!("    {line}\n")).collect::<String>().trim_end().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_quotes_the_command_and_the_end_of_its_output() {
        let mut command = Command::new("sh");
        command.args(["-c", "seq 100 >&2; exit 3"]);
        let error = run(&mut command, "").unwrap_err().to_string();
        assert!(
            error.starts_with("`sh -c 'seq 100 >&2; exit 3'` failed (exit status: 3):\n    81\n"),
            "{error}"
        );
        assert!(error.ends_with("    100"), "{error}");
    }

    #[test]
    fn a_missing_program_says_how_to_get_it() {
        let error = run(&mut Command::new("no-such-program"), "install it").unwrap_err().to_string();
        assert_eq!(error, "cannot find the program `no-such-program`: install it");
    }

    #[test]
    fn a_build_scripts_environment_stays_outside() {
        // Cargo sets CARGO_PKG_NAME and other variables for tests, so the environment has variables to clear.
        let tools = Tools::default();
        let command = tools.cargo();
        let cleared: Vec<_> = command
            .get_envs()
            .filter(|(_, value)| value.is_none())
            .map(|(name, _)| name.to_string_lossy().into_owned())
            .collect();
        assert!(cleared.iter().any(|name| name == "CARGO_PKG_NAME"), "{cleared:?}");
        assert!(!cleared.iter().any(|name| name == "CARGO_HOME" || name == "CARGO"), "{cleared:?}");
    }
}
