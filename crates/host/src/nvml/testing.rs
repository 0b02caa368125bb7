//! Fake libnvidia-ml for tests, which answers according to a script:
//!
//! ```text
//! driver 570.133.20             version of the driver
//! cuda 12080                    newest supported CUDA version: 12.8
//! init 18                       error code of the initialisation; `count 4`: error code of counting the GPUs
//! hang 60                       seconds that the initialisation takes
//! device                        a GPU; the lines below it belong to it
//!   name NVIDIA H200
//!   uuid GPU-1111
//!   capability 9 0
//!   total 143771                memory in MiB; `used` in the same unit
//!   utilisation 0 90 95 -15     one per call, the last one repeated; a negative one is an error, here a lost GPU
//!   stalls 0 0 4 0              seconds that a query of the utilisation takes
//!   milliwatts 70000 500000     power; `mhz`: clock; `millijoules`: energy
//!   throttling 4                bits of the reasons for reduced clocks
//!   pcie-received 800 750 -15   KB received per second; `pcie-sent`: KB sent per second
//!   most-memory-mhz 3201        maximum clock of the memory; `most-sm-mhz` and `bus-bits`: the other limits
//!   handle -4                   error code of looking up the GPU
//!   mig 1                       MIG is enabled
//!   mode 3                      compute mode: 0 shared, 2 prohibited, 3 exclusive
//!   persistence 1               persistence mode: 0 off, 1 on
//!   pstate 8                    performance state: 0 to 15, 32 unknown
//! instance                      a MIG instance of the GPU above, with the same lines as a GPU
//! ```
//!
//! The library is compiled with `cc` into a separate folder for each test. The test passes the library's path to
//! [`Nvml::start`](super::Nvml::start).

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use super::LibrarySource;

const SOURCE: &str = include_str!("fake.c");

/// Fake library with its script, and the folder that contains both.
#[derive(Debug)]
pub struct Fake {
    folder: tempfile::TempDir,
}

impl Fake {
    /// Creates a library that answers according to `script`.
    pub fn new(script: &str) -> Self {
        static WHOLE: OnceLock<Vec<u8>> = OnceLock::new();
        Self::of(WHOLE.get_or_init(|| compile(&[])), script)
    }

    /// Creates a library that lacks `function`.
    pub fn lacking(function: &str, script: &str) -> Self {
        Self::of(&compile(&[format!("-D{function}=hidden_{function}")]), script)
    }

    fn of(library: &[u8], script: &str) -> Self {
        let fake = Self { folder: tempfile::tempdir().expect("a temporary folder") };
        std::fs::write(fake.path(), library).expect("the library is written");
        fake.say(script);
        fake
    }

    /// Returns the path of the library.
    pub fn path(&self) -> PathBuf {
        self.folder.path().join("libnvidia-ml.so.1")
    }

    /// Returns the library as a [`LibrarySource`].
    pub fn place(&self) -> LibrarySource {
        LibrarySource::At(self.path())
    }

    /// Replaces the script. The new script applies after the next initialisation.
    pub fn say(&self, script: &str) {
        std::fs::write(self.beside("script"), script).expect("the script is written");
    }

    /// Returns the numbers of initialisations and shutdowns.
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
