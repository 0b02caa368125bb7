//! Programs that were built in this checkout, possibly for an architecture other than this machine's.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Log, Run};

/// Program and the command that starts it on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Executable {
    path: PathBuf,
    /// Words before the program: the command of an emulator, or none.
    before: Vec<String>,
}

impl Executable {
    /// Creates an executable for the program at `path`, which runs natively.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), before: Vec::new() }
    }

    /// Returns this executable with the words `before` in front of the program.
    pub fn after(self, before: impl IntoIterator<Item = String>) -> Self {
        Self { before: before.into_iter().collect(), ..self }
    }

    /// Returns the path of the program.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the words in front of the program.
    pub fn before(&self) -> &[String] {
        &self.before
    }

    /// Returns a run of the program that logs to `log`.
    pub fn run<'a>(&self, log: &'a Log) -> Run<'a> {
        let (program, arguments) = self.words();
        Run::new(program, log).args(arguments)
    }

    /// Returns the command that runs the program.
    pub fn command(&self) -> Command {
        let (program, arguments) = self.words();
        let mut command = Command::new(program);
        command.args(arguments);
        command
    }

    fn words(&self) -> (&OsStr, Vec<&OsStr>) {
        let path = self.path.as_os_str();
        match self.before.split_first() {
            None => (path, Vec::new()),
            Some((emulator, rest)) => {
                (emulator.as_ref(), rest.iter().map(OsStr::new).chain([path]).collect())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_of_another_machine_stands_behind_its_emulator() {
        let line = |executable: &Executable| crate::process::line(executable.command().arg("info"));
        let own = Executable::new("/b/anneal");
        assert_eq!(line(&own), "/b/anneal info");
        let foreign = own.after(["qemu-aarch64", "-L", "/sys root"].map(str::to_string));
        assert_eq!(line(&foreign), "qemu-aarch64 -L '/sys root' /b/anneal info");
        assert_eq!(foreign.path(), Path::new("/b/anneal"));
    }
}
