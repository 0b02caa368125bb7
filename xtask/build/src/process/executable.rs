//! Programs that were built here, which may be for another architecture than this machine's.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Log, Run};

/// A program, and how it is started here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Executable {
    path: PathBuf,
    /// The words before it: an emulator's.
    before: Vec<String>,
}

impl Executable {
    /// The program at `path`, which runs by itself.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), before: Vec::new() }
    }

    /// The same with the words `before` in front of it.
    pub fn after(self, before: impl IntoIterator<Item = String>) -> Self {
        Self { before: before.into_iter().collect(), ..self }
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The words in front of it.
    pub fn before(&self) -> &[String] {
        &self.before
    }

    /// Runs it and logs to `log`.
    pub fn run<'a>(&self, log: &'a Log) -> Run<'a> {
        let (program, arguments) = self.words();
        Run::new(program, log).args(arguments)
    }

    /// The command that runs it.
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
