//! What was found, as plain data: the planner takes it as input, and can be given that of another
//! machine.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use build_info::record::Tool;
use serde::{Deserialize, Serialize};

/// Oldest clang that is worth its installation, and preferred to gcc.
pub const CLANG_AT_LEAST: u32 = 18;
/// Oldest gcc that builds llama.cpp.
pub const GCC_AT_LEAST: u32 = 11;
/// Oldest llvm-bolt: older ones know no `-icf=safe`.
pub const BOLT_AT_LEAST: u32 = 20;
/// Oldest CMake. llama.cpp itself asks for 3.14; 3.24 knows `--fresh` and
/// `CMAKE_CUDA_ARCHITECTURES=native`.
pub const CMAKE_AT_LEAST: Version = Version::new(3, 24, 0);
/// The zig that makes builds for other machines: this one and no other, so that they are the same wherever they are made.
/// It is clang with headers and link-time stubs of any glibc, and with a C++ runtime in source.
pub const ZIG: Version = Version::new(0, 17, 1);
/// The clang in it.
pub const ZIG_CLANG: Version = Version::new(22, 1, 8);
/// The other architecture that builds are made for, where the machine is not of it: as rustc calls it.
pub const AARCH64: &str = "aarch64-unknown-linux-gnu";
/// The CUDA that `setup` installs.
pub const CUDA: Version = Version::new(13, 5, 0);
/// The compute capabilities, times ten, that it compiles for: the first and the last.
pub const CUDA_COMPILES_FOR: (u32, u32) = (75, 121);
/// Oldest libclang that bindgen loads.
pub const LIBCLANG_AT_LEAST: u32 = 9;

/// Every tool of the machine that a build, a profile run or a measurement may want.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Toolchain {
    /// C and C++ compilers, all versions installed, best first: clang by falling version, then gcc.
    pub compilers: Vec<Compiler>,
    /// What CMake would take by itself: `cc` and `c++` on the path.
    pub default_compiler: Option<Compiler>,
    /// CMake, 3.24 or later where there is one.
    pub cmake: Option<Tool>,
    /// Ninja.
    pub ninja: Option<Tool>,
    /// zig, of the one version that is used.
    pub zig: Option<Tool>,
    /// LLVM's linkers, newest first.
    pub lld: Vec<Tool>,
    /// mold.
    pub mold: Option<Tool>,
    /// `llvm-profdata`, all versions, newest first.
    pub llvm_profdata: Vec<Tool>,
    /// `llvm-bolt`, all versions, newest first.
    pub llvm_bolt: Vec<Tool>,
    /// `llvm-ar` of the same majors.
    pub llvm_ar: Vec<Tool>,
    /// NVIDIA's toolkits: that of `CUDA_HOME`, then the one that `setup` installed, those on the path, and those in the
    /// usual places.
    pub cuda: Vec<Cuda>,
    /// Where the user says that one is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cuda_home: Option<CudaHome>,
    /// Compiler cache.
    pub sccache: Option<Tool>,
    /// Compiler cache.
    pub ccache: Option<Tool>,
    /// libclang for bindgen, newest first.
    pub libclang: Vec<Libclang>,
    /// Majors of clang whose OpenMP runtime is there to build with; 0 is any.
    pub openmp: Vec<u32>,
    /// BLAS libraries.
    pub blas: Vec<BlasLibrary>,
    /// rustc.
    pub rustc: Option<Rustc>,
    /// GNU make, which builds OpenBLAS.
    pub make: Option<Tool>,
    /// git, for the sources' `git` origin.
    pub git: Option<Tool>,
    /// qemu's user mode for x86-64, for tests.
    pub qemu_user: Option<Tool>,
    /// What runs programs for aarch64 here.
    pub aarch64: Option<Emulator>,
    /// Targets that rustc has a standard library for.
    pub rust_targets: Vec<String>,
    /// System programs that tests run, by name. Builds do not need them.
    #[serde(skip)]
    pub programs: BTreeSet<&'static str>,
    /// Programs that had not told their version when the time for it was up. They count as not there.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub silent: Vec<PathBuf>,
}

/// qemu's user mode for another architecture, with what the programs of that architecture are linked to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Emulator {
    /// The emulator.
    pub tool: Tool,
    /// Folder whose `lib` holds that architecture's loader and C library.
    pub sysroot: PathBuf,
}

/// One C/C++ compiler.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compiler {
    /// Which family.
    pub kind: CompilerKind,
    /// C driver.
    pub cc: PathBuf,
    /// C++ driver.
    pub cxx: PathBuf,
    /// Version.
    pub version: Version,
}

/// Compiler family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CompilerKind {
    /// LLVM's.
    Clang,
    /// GNU's.
    Gcc,
}

impl fmt::Display for CompilerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            CompilerKind::Clang => "clang",
            CompilerKind::Gcc => "gcc",
        })
    }
}

/// libclang, which bindgen loads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Libclang {
    /// Folder that holds the library: `LIBCLANG_PATH`.
    pub dir: PathBuf,
    /// Version.
    pub version: Version,
}

/// A BLAS library: what a build compiles and links with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlasLibrary {
    /// `openblas`, `blis`, `mkl`.
    pub vendor: String,
    /// Version.
    pub version: String,
    /// Name for pkg-config; none for a library that comes without a `.pc` file.
    pub pkg_config: Option<String>,
    /// Who runs its threads, where that can be told.
    pub threading: Option<BlasThreading>,
    /// Folder of its headers.
    pub include: PathBuf,
    /// The files to link, in order, behind all links.
    pub libraries: Vec<PathBuf>,
    /// What it was built from, where xtask built it: the archive's SHA-256.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

/// Who runs the threads of a BLAS library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BlasThreading {
    /// Threads of its own.
    Pthread,
    /// An OpenMP runtime.
    Openmp,
    /// There are none.
    Serial,
}

impl fmt::Display for BlasThreading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            BlasThreading::Pthread => "pthread",
            BlasThreading::Openmp => "openmp",
            BlasThreading::Serial => "serial",
        })
    }
}

/// NVIDIA's toolkit, as far as a build needs it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cuda {
    /// Its compiler.
    pub nvcc: Tool,
    /// The folder whose `bin` holds the compiler, behind all links.
    pub root: PathBuf,
    /// Newest host compilers that it takes.
    #[serde(default)]
    pub hosts: NvccHosts,
    /// Compute capabilities that it compiles for, times ten, ascending: 75 is 7.5. Empty where it does not tell (before
    /// CUDA 11).
    #[serde(default)]
    pub architectures: Vec<u32>,
    /// Folder of the runtime's headers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub include: Option<PathBuf>,
    /// Folder of cuBLAS's headers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cublas_include: Option<PathBuf>,
    /// The runtime, as an archive: it becomes part of the program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime: Option<PathBuf>,
    /// cuBLAS. Only needed when the program runs, and not by all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cublas: Option<PathBuf>,
    /// What nvcc itself runs and reads, and does not find: `ptxas`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub torn: Vec<String>,
}

impl Cuda {
    /// Whether all is there that a build compiles and links with.
    pub fn is_whole(&self) -> bool {
        self.lacks().is_empty()
    }

    /// What is not there of it.
    pub fn lacks(&self) -> Vec<&str> {
        let needed = [
            ("the runtime's headers", self.include.is_some()),
            ("cuBLAS's headers", self.cublas_include.is_some()),
            ("libcudart_static.a", self.runtime.is_some()),
        ];
        let missing = needed.into_iter().filter_map(|(what, there)| (!there).then_some(what));
        missing.chain(self.torn.iter().map(String::as_str)).collect()
    }

    /// Whether it compiles for the compute capability `architecture`, times ten; one that does not tell may.
    pub fn compiles_for(&self, architecture: u32) -> bool {
        self.architectures.is_empty() || self.architectures.contains(&architecture)
    }

    /// Whether `compiler` can be its host compiler.
    pub fn takes(&self, compiler: &Compiler) -> bool {
        self.hosts.newest(compiler.kind).is_none_or(|newest| compiler.version.major <= newest)
    }
}

/// What `CUDA_HOME` or `CUDA_PATH` says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CudaHome {
    /// Which of them.
    pub variable: String,
    /// Its value.
    pub path: PathBuf,
    /// Why there is no toolkit; nothing where there is one, which then stands before all others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
}

impl fmt::Display for CudaHome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.variable, self.path.display())
    }
}

/// Newest host compilers that nvcc takes, as its `crt/host_config.h` says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NvccHosts {
    /// Newest major version of gcc.
    pub gcc: Option<u32>,
    /// Newest major version of clang.
    pub clang: Option<u32>,
}

impl NvccHosts {
    /// Newest major version of a family; nothing where the header does not tell.
    pub fn newest(self, kind: CompilerKind) -> Option<u32> {
        match kind {
            CompilerKind::Clang => self.clang,
            CompilerKind::Gcc => self.gcc,
        }
    }
}

/// The Rust compiler.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rustc {
    /// Where it is.
    pub path: PathBuf,
    /// Version.
    pub version: Version,
    /// Host triple.
    pub host: String,
    /// LLVM it is built on.
    pub llvm: Version,
}

/// `major.minor.patch`; what is not there is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Version {
    /// First number.
    pub major: u32,
    /// Second number.
    pub minor: u32,
    /// Third number.
    pub patch: u32,
}

impl Version {
    /// `major.minor.patch`
    pub const fn new(major: u32, minor: u32, patch: u32) -> Self {
        Self { major, minor, patch }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}.{}.{}", self.major, self.minor, self.patch))
    }
}

impl FromStr for Version {
    type Err = String;

    /// Takes the leading numbers: `22.1.8-1~deb12u1` is 22.1.8, `1.11` is 1.11.0.
    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.split(|c: char| !c.is_ascii_digit() && c != '.').next().unwrap_or_default();
        let mut numbers = digits.split('.').map(str::parse::<u32>);
        let Some(Ok(major)) = numbers.next() else {
            return Err(format!("not a version: {text:?}"));
        };
        let mut next = || numbers.next().and_then(Result::ok).unwrap_or(0);
        Ok(Self { major, minor: next(), patch: next() })
    }
}

impl TryFrom<String> for Version {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Version> for String {
    fn from(version: Version) -> Self {
        version.to_string()
    }
}
