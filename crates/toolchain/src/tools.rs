//! Detected tools as plain data, which is the planner's input and may describe another machine.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use build_info::record::Tool;
use serde::{Deserialize, Serialize};

/// Oldest major version of clang that is preferred to gcc and worth installing.
pub const CLANG_AT_LEAST: u32 = 18;
/// Oldest major version of gcc that builds llama.cpp.
pub const GCC_AT_LEAST: u32 = 11;
/// Oldest supported major version of llvm-bolt; older versions lack `-icf=safe`.
pub const BOLT_AT_LEAST: u32 = 20;
/// Oldest supported CMake. llama.cpp itself requires 3.14; `--fresh` and `CMAKE_CUDA_ARCHITECTURES=native` need 3.24.
pub const CMAKE_AT_LEAST: Version = Version::new(3, 24, 0);
/// Version of zig that makes builds for other machines. Only this version is accepted, so that builds are the same on
/// every build machine. zig is clang with headers and link-time stubs of every glibc, and with the source of a C++
/// runtime.
pub const ZIG: Version = Version::new(0, 17, 1);
/// Version of the clang in zig.
pub const ZIG_CLANG: Version = Version::new(22, 1, 8);
/// Target triple of the other architecture that builds can be made for, in rustc's notation.
pub const AARCH64: &str = "aarch64-unknown-linux-gnu";
/// Version of CUDA that `setup` installs.
pub const CUDA: Version = Version::new(13, 5, 0);
/// Smallest and largest compute capability that CUDA version [`CUDA`] compiles for, times ten.
pub const CUDA_COMPILES_FOR: (u32, u32) = (75, 121);
/// Oldest major version of libclang that bindgen loads.
pub const LIBCLANG_AT_LEAST: u32 = 9;

/// All tools of the machine that a build, a profile run or a measurement may use.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Toolchain {
    /// C and C++ compilers, all installed versions, in order of preference: clang from the newest to the oldest, then
    /// gcc.
    pub compilers: Vec<Compiler>,
    /// Compiler that CMake would choose: `cc` and `c++` on the path.
    pub default_compiler: Option<Compiler>,
    /// CMake; version 3.24 or later if one is installed.
    pub cmake: Option<Tool>,
    /// Ninja.
    pub ninja: Option<Tool>,
    /// zig, if it has the required version.
    pub zig: Option<Tool>,
    /// LLVM's linkers, newest first.
    pub lld: Vec<Tool>,
    /// mold.
    pub mold: Option<Tool>,
    /// All versions of `llvm-profdata`, newest first.
    pub llvm_profdata: Vec<Tool>,
    /// All versions of `llvm-bolt`, newest first.
    pub llvm_bolt: Vec<Tool>,
    /// All versions of `llvm-ar`, newest first.
    pub llvm_ar: Vec<Tool>,
    /// NVIDIA's toolkits: the toolkit in `CUDA_HOME`, the toolkit that `setup` installed, then toolkits on the path
    /// and in the usual folders.
    pub cuda: Vec<Cuda>,
    /// Toolkit that `CUDA_HOME` or `CUDA_PATH` specifies; `None` if neither variable is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cuda_home: Option<CudaHome>,
    /// sccache, a compiler cache.
    pub sccache: Option<Tool>,
    /// ccache, a compiler cache.
    pub ccache: Option<Tool>,
    /// Versions of libclang for bindgen, newest first.
    pub libclang: Vec<Libclang>,
    /// Major versions of clang with a profile runtime, without which clang cannot link a program that collects a
    /// profile.
    pub profile_runtimes: Vec<u32>,
    /// Major versions of clang with a usable OpenMP runtime; 0 means any version.
    pub openmp: Vec<u32>,
    /// BLAS libraries.
    pub blas: Vec<BlasLibrary>,
    /// rustc.
    pub rustc: Option<Rustc>,
    /// GNU make, which builds OpenBLAS.
    pub make: Option<Tool>,
    /// git, for the origin `git` of the sources and for patches.
    pub git: Option<Tool>,
    /// qemu's user mode for x86-64, for tests.
    pub qemu_user: Option<Tool>,
    /// Emulator of aarch64.
    pub aarch64: Option<Emulator>,
    /// Targets for which rustc has a standard library.
    pub rust_targets: Vec<String>,
    /// CPU that a build is for, as its compilers describe it; `None` unless the build specifies a CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub named_cpu: Option<NamedCpu>,
    /// Names of the system programs that tests run. Builds do not need them.
    #[serde(skip)]
    pub programs: BTreeSet<&'static str>,
    /// Programs that did not print their version in time. They are treated as missing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub silent: Vec<PathBuf>,
}

/// CPU with its `-march` name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedCpu {
    /// Name of the CPU.
    pub name: String,
    /// Instruction sets that the C compiler may use for the CPU, named as in the CPU guard.
    pub features: Vec<String>,
}

/// qemu's user mode for another architecture, with that architecture's C library.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Emulator {
    /// Program of the emulator.
    pub tool: Tool,
    /// Folder whose `lib` contains the architecture's loader and C library.
    pub sysroot: PathBuf,
}

/// C and C++ compiler.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compiler {
    /// Kind of the compiler.
    pub kind: CompilerKind,
    /// Path of the C compiler.
    pub cc: PathBuf,
    /// Path of the C++ compiler.
    pub cxx: PathBuf,
    /// Version of the compiler.
    pub version: Version,
}

/// Kind of compiler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CompilerKind {
    /// LLVM's clang.
    Clang,
    /// GNU's gcc.
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
    /// Folder that contains the library, for `LIBCLANG_PATH`.
    pub dir: PathBuf,
    /// Version of the library; 0 if the library's name does not contain the version.
    pub version: Version,
}

/// BLAS library that a build can compile and link with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlasLibrary {
    /// Name of the vendor: `openblas`, `blis` or `mkl`.
    pub vendor: String,
    /// Version of the library.
    pub version: String,
    /// Name of the library's `.pc` file; `None` if the library has none.
    pub pkg_config: Option<String>,
    /// Threading of the library; `None` if unknown.
    pub threading: Option<BlasThreading>,
    /// Folder of the library's headers.
    pub include: PathBuf,
    /// Files to link, in order, with links resolved.
    pub libraries: Vec<PathBuf>,
    /// SHA-256 of the source archive if xtask built the library; else `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

/// Threading of a BLAS library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BlasThreading {
    /// Its own threads.
    Pthread,
    /// Threads of an OpenMP runtime.
    Openmp,
    /// Single-threaded.
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

/// NVIDIA's CUDA toolkit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cuda {
    /// Compiler of the toolkit.
    pub nvcc: Tool,
    /// Folder whose `bin` contains the compiler, with links resolved.
    pub root: PathBuf,
    /// Newest host compilers that nvcc accepts.
    #[serde(default)]
    pub hosts: NvccHosts,
    /// Compute capabilities that nvcc compiles for, times ten, ascending: 75 is 7.5. Empty if nvcc does not report
    /// them (before CUDA 11).
    #[serde(default)]
    pub architectures: Vec<u32>,
    /// Folder of the runtime's headers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub include: Option<PathBuf>,
    /// Folder of cuBLAS's headers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cublas_include: Option<PathBuf>,
    /// Static library of the runtime, which becomes part of the program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime: Option<PathBuf>,
    /// Shared library of cuBLAS. It is only needed at run time, and not by every program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cublas: Option<PathBuf>,
    /// Programs and files that nvcc itself needs and cannot find, such as `ptxas`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub torn: Vec<String>,
}

impl Cuda {
    /// True if everything that a build compiles and links with exists.
    pub fn is_whole(&self) -> bool {
        self.lacks().is_empty()
    }

    /// Returns the missing parts.
    pub fn lacks(&self) -> Vec<&str> {
        let needed = [
            ("the runtime's headers", self.include.is_some()),
            ("cuBLAS's headers", self.cublas_include.is_some()),
            ("libcudart_static.a", self.runtime.is_some()),
        ];
        let missing = needed.into_iter().filter_map(|(what, there)| (!there).then_some(what));
        missing.chain(self.torn.iter().map(String::as_str)).collect()
    }

    /// True if nvcc compiles for the compute capability `architecture`, times ten, or does not report its
    /// capabilities.
    pub fn compiles_for(&self, architecture: u32) -> bool {
        self.architectures.is_empty() || self.architectures.contains(&architecture)
    }

    /// True if nvcc accepts `compiler` as its host compiler.
    pub fn takes(&self, compiler: &Compiler) -> bool {
        self.hosts.newest(compiler.kind).is_none_or(|newest| compiler.version.major <= newest)
    }
}

/// Setting of `CUDA_HOME` or `CUDA_PATH`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CudaHome {
    /// Name of the variable.
    pub variable: String,
    /// Value of the variable.
    pub path: PathBuf,
    /// Reason why the variable does not specify a usable toolkit; `None` if the toolkit is usable. A usable toolkit
    /// comes first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
}

impl fmt::Display for CudaHome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.variable, self.path.display())
    }
}

/// Newest host compilers that nvcc accepts, from its `crt/host_config.h`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NvccHosts {
    /// Newest major version of gcc; `None` if the header states none.
    pub gcc: Option<u32>,
    /// Newest major version of clang; `None` if the header states none.
    pub clang: Option<u32>,
}

impl NvccHosts {
    /// Returns the newest major version of a kind of compiler; `None` if the header states none.
    pub fn newest(self, kind: CompilerKind) -> Option<u32> {
        match kind {
            CompilerKind::Clang => self.clang,
            CompilerKind::Gcc => self.gcc,
        }
    }
}

/// Rust compiler.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rustc {
    /// Path of the program.
    pub path: PathBuf,
    /// Version of rustc.
    pub version: Version,
    /// Host triple.
    pub host: String,
    /// Version of the LLVM that rustc is built with.
    pub llvm: Version,
}

/// Version `major.minor.patch`; missing numbers are 0.
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
    /// Creates the version `major.minor.patch`.
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

    /// Parses the leading numbers: `22.1.8-1~deb12u1` is 22.1.8, and `1.11` is 1.11.0.
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
