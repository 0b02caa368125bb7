//! A libnvidia-ml for tests, which answers by a script:
//!
//! ```text
//! driver 570.133.20             version of the driver
//! cuda 12080                    the newest CUDA that it knows: 12.8
//! init 18                       what starting it ends with; `count 4` the same of counting GPUs
//! hang 60                       seconds that starting it takes
//! device                        a card; the lines below it are its own
//!   name NVIDIA H200
//!   uuid GPU-1111
//!   capability 9 0
//!   total 143771                memory in MiB; `used` the same
//!   utilisation 0 90 95 -15     one a call, the last again and again; a negative one is an error, here a lost card
//!   stalls 0 0 4 0              seconds that telling the utilisation takes
//!   milliwatts 70000 500000     power; `mhz` the clock, `millijoules` the energy
//!   throttling 4                bits of what holds its clocks back
//!   pcie-received 800 750 -15   KB a second that come to it; `pcie-sent` the same of those that leave
//!   most-memory-mhz 3201        highest clock of the memory; `most-sm-mhz`, `bus-bits` the other limits
//!   handle -4                   what looking it up ends with
//!   mig 1                       MIG is on
//!   mode 3                      who may compute on it: 0 everybody, 2 nobody, 3 one process at a time
//! instance                      a part of the card above, with lines like a card's
//! ```
//!
//! It is compiled with `cc` and put into a folder of its own for each test: which library is loaded is said to
//! [`Nvml::start`](super::Nvml::start) by its path.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use super::LibrarySource;

const SOURCE: &str = include_str!("fake.c");

/// A library, its script, and the folder of both.
#[derive(Debug)]
pub struct Fake {
    folder: tempfile::TempDir,
}

impl Fake {
    /// One that answers by `script`.
    pub fn new(script: &str) -> Self {
        static WHOLE: OnceLock<Vec<u8>> = OnceLock::new();
        Self::of(WHOLE.get_or_init(|| compile(&[])), script)
    }

    /// One that lacks `function`.
    pub fn lacking(function: &str, script: &str) -> Self {
        Self::of(&compile(&[format!("-D{function}=hidden_{function}")]), script)
    }

    fn of(library: &[u8], script: &str) -> Self {
        let fake = Self { folder: tempfile::tempdir().expect("a temporary folder") };
        std::fs::write(fake.path(), library).expect("the library is written");
        fake.say(script);
        fake
    }

    /// The library's file.
    pub fn path(&self) -> PathBuf {
        self.folder.path().join("libnvidia-ml.so.1")
    }

    /// The same as a place.
    pub fn place(&self) -> LibrarySource {
        LibrarySource::At(self.path())
    }

    /// Lets it answer by `script` from its next start on.
    pub fn say(&self, script: &str) {
        std::fs::write(self.beside("script"), script).expect("the script is written");
    }

    /// How often it was started, and how often it was told to end.
    pub fn starts_and_ends(&self) -> (usize, usize) {
        let log = std::fs::read_to_string(self.beside("log")).unwrap_or_default();
        let count = |word: &str| log.lines().filter(|line| *line == word).count();
        (count("init"), count("shutdown"))
    }

    fn beside(&self, what: &str) -> PathBuf {
        self.folder.path().join(format!("libnvidia-ml.so.1.{what}"))
    }
}

fn compile(flags: &[String]) -> Vec<u8> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (source, library) = (folder.path().join("fake.c"), folder.path().join("fake.so"));
    std::fs::write(&source, SOURCE).expect("the source is written");
    run(Command::new("cc")
        .args(["-O1", "-shared", "-fPIC", "-w", "-o"])
        .arg(&library)
        .args(flags)
        .arg(&source));
    std::fs::read(Path::new(&library)).expect("the compiler wrote it")
}

fn run(command: &mut Command) {
    let output = command.arg("-ldl").output().expect("tests need a C compiler called cc");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}
