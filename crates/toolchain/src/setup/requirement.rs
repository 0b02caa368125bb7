//! Requirements of a build, and checks if they are met.

use std::fmt;

use build_info::record::Tool;
use serde::{Deserialize, Serialize};

use crate::tools::{
    AARCH64, BOLT_AT_LEAST, CLANG_AT_LEAST, CMAKE_AT_LEAST, CUDA, Compiler, CompilerKind, Cuda, GCC_AT_LEAST,
    LIBCLANG_AT_LEAST, Toolchain, Version, ZIG,
};

/// Tool or library that a profile or a command needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Requirement {
    /// C and C++ compiler that builds llama.cpp: clang 18 or gcc 11, or later.
    Compiler,
    /// CMake 3.24 or later.
    Cmake,
    /// Ninja.
    Ninja,
    /// libclang with its headers, for bindgen.
    Libclang,
    /// clang 18 or later.
    Clang,
    /// Pinned version of zig.
    Zig,
    /// LLVM's linker, of the same version as clang.
    Lld,
    /// `llvm-profdata` and `llvm-ar` that read the output of both rustc and clang, and clang's profile runtime.
    LlvmTools,
    /// `llvm-bolt` 20 or later.
    Bolt,
    /// OpenBLAS with a `.pc` file.
    Openblas,
    /// BLIS.
    Blis,
    /// Intel's MKL.
    Mkl,
    /// NVIDIA's CUDA toolkit, any complete version.
    Cuda,
    /// NVIDIA's CUDA toolkit of the version that `setup` installs, or later.
    NewCuda,
    /// GNU make, which builds OpenBLAS.
    Make,
    /// OpenMP runtime of clang's version; gcc includes its own.
    Openmp,
    /// git.
    Git,
    /// pip.
    Pip,
    /// Emulator of aarch64: qemu's user mode and the architecture's C library.
    EmulatorAarch64,
    /// Rust's standard library for aarch64.
    RustAarch64,
    /// qemu's user mode for x86-64, which tests the CPU guard on emulated CPUs.
    QemuUser,
    /// System compilers `cc` and `c++`.
    SystemCompiler,
    /// curl, with which install.sh downloads.
    Curl,
    /// wget, with which install.sh downloads if curl is missing.
    Wget,
    /// zstd, with which install.sh unpacks.
    Zstd,
    /// minisign, with which install.sh checks signatures.
    Minisign,
    /// dpkg, which installs Debian packages.
    Dpkg,
    /// `kill` as a program, not only as a shell builtin.
    Procps,
    /// `script`, `taskset`, `unshare` and other programs that minimal installations lack.
    UtilLinux,
    /// `ip`, which creates networks.
    Iproute,
}

/// System programs that tests run, in any version.
pub(crate) const PROGRAMS: [(Requirement, &[&str]); 9] = [
    (Requirement::SystemCompiler, &["cc", "c++"]),
    (Requirement::Curl, &["curl"]),
    (Requirement::Wget, &["wget"]),
    (Requirement::Zstd, &["zstd"]),
    (Requirement::Minisign, &["minisign"]),
    (Requirement::Dpkg, &["dpkg", "dpkg-deb"]),
    (Requirement::Procps, &["kill"]),
    (Requirement::UtilLinux, &["flock", "mount", "script", "taskset", "unshare"]),
    (Requirement::Iproute, &["ip"]),
];

impl Requirement {
    /// True if `toolchain` lacks the requirement. `pip` is true if pip is installed; pip is not a tool of a build.
    pub(crate) fn is_missing(self, toolchain: &Toolchain, pip: bool) -> bool {
        match self {
            Requirement::Compiler => clang(toolchain).is_none() && gcc(toolchain).is_none(),
            Requirement::Cmake => {
                toolchain.cmake.as_ref().and_then(version).is_none_or(|found| found < CMAKE_AT_LEAST)
            }
            Requirement::Ninja => toolchain.ninja.is_none(),
            // Version 0 means that the library's name does not contain the version.
            Requirement::Libclang => {
                let good = |major| major == 0 || major >= LIBCLANG_AT_LEAST;
                !toolchain.libclang.iter().any(|libclang| good(libclang.version.major))
            }
            Requirement::Clang => clang(toolchain).is_none(),
            Requirement::Zig => toolchain.zig.is_none(),
            Requirement::Lld => match clang(toolchain) {
                Some(clang) => !toolchain.lld.iter().any(|lld| lld.llvm_major == Some(clang.version.major)),
                None => toolchain.lld.is_empty(),
            },
            Requirement::LlvmTools => {
                let rustc = toolchain.rustc.as_ref().map(|rustc| rustc.llvm.major);
                let needed = rustc.max(clang(toolchain).map(|clang| clang.version.major));
                // Only the newest version of each tool matters; both tools come in one package.
                let lacks = |tools: &[Tool]| tools.first().is_none_or(|newest| newest.llvm_major < needed);
                let runtime = clang(toolchain)
                    .is_none_or(|clang| toolchain.profile_runtimes.contains(&clang.version.major));
                lacks(&toolchain.llvm_profdata) || lacks(&toolchain.llvm_ar) || !runtime
            }
            Requirement::Bolt => {
                toolchain.llvm_bolt.first().is_none_or(|newest| newest.llvm_major < Some(BOLT_AT_LEAST))
            }
            Requirement::Openblas => lacks_blas(toolchain, "openblas"),
            Requirement::Blis => lacks_blas(toolchain, "blis"),
            Requirement::Mkl => lacks_blas(toolchain, "mkl"),
            Requirement::Cuda => !toolchain.cuda.iter().any(Cuda::is_whole),
            Requirement::NewCuda => !toolchain
                .cuda
                .iter()
                .any(|cuda| cuda.is_whole() && version(&cuda.nvcc).is_some_and(|version| version >= CUDA)),
            Requirement::Make => toolchain.make.is_none(),
            Requirement::Openmp => clang(toolchain).is_some_and(|clang| {
                !toolchain.openmp.iter().any(|major| [0, clang.version.major].contains(major))
            }),
            Requirement::Git => toolchain.git.is_none(),
            Requirement::Pip => !pip,
            Requirement::EmulatorAarch64 => toolchain.aarch64.is_none(),
            Requirement::RustAarch64 => !toolchain.rust_targets.iter().any(|target| target == AARCH64),
            Requirement::QemuUser => toolchain.qemu_user.is_none(),
            Requirement::SystemCompiler
            | Requirement::Curl
            | Requirement::Wget
            | Requirement::Zstd
            | Requirement::Minisign
            | Requirement::Dpkg
            | Requirement::Procps
            | Requirement::UtilLinux
            | Requirement::Iproute => {
                let needed = PROGRAMS.iter().filter(|(requirement, _)| *requirement == self);
                needed.flat_map(|(_, names)| *names).any(|name| !toolchain.programs.contains(*name))
            }
        }
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Requirement::Compiler => {
                &format!("a C++ compiler (clang {CLANG_AT_LEAST} or gcc {GCC_AT_LEAST}, or later)")
            }
            Requirement::Cmake => {
                &format!("cmake {}.{} or later", CMAKE_AT_LEAST.major, CMAKE_AT_LEAST.minor)
            }
            Requirement::Ninja => "ninja",
            Requirement::Libclang => "libclang (for bindgen)",
            Requirement::Clang => &format!("clang {CLANG_AT_LEAST} or later"),
            Requirement::Zig => &format!("zig {ZIG}"),
            Requirement::Lld => "lld (same version as clang)",
            Requirement::LlvmTools => {
                "llvm-profdata and llvm-ar of rustc's LLVM, with clang's profile runtime"
            }
            Requirement::Bolt => &format!("llvm-bolt {BOLT_AT_LEAST} or later"),
            Requirement::Openblas => "OpenBLAS and pkg-config",
            Requirement::Blis => "BLIS with its headers",
            Requirement::Mkl => "MKL with its headers",
            Requirement::Cuda => "a CUDA toolkit with cuBLAS's headers",
            Requirement::NewCuda => &format!("CUDA {}.{} or later", CUDA.major, CUDA.minor),
            Requirement::Make => "GNU make",
            Requirement::Openmp => "clang's OpenMP runtime",
            Requirement::Git => "git",
            Requirement::Pip => "pip",
            Requirement::EmulatorAarch64 => "qemu-aarch64 and the C library of aarch64",
            Requirement::RustAarch64 => "Rust's standard library for aarch64",
            Requirement::QemuUser => "qemu-x86_64 (for the tests of the CPU guard)",
            Requirement::SystemCompiler => "cc and c++ (for tests)",
            Requirement::Curl => "curl (for the tests of install.sh)",
            Requirement::Wget => "wget (for the tests of install.sh)",
            Requirement::Zstd => "zstd (for the tests of install.sh)",
            Requirement::Minisign => "minisign (for the tests of signatures)",
            Requirement::Dpkg => "dpkg (for the tests of Debian packages)",
            Requirement::Procps => "kill (for the tests of signals)",
            Requirement::UtilLinux => "script, taskset, unshare, mount and flock (for tests)",
            Requirement::Iproute => "ip (for the tests of several machines)",
        };
        f.pad(text)
    }
}

/// Requirements of a command, and tools that would improve the build.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Requirements without which the command cannot run.
    pub required: Vec<Requirement>,
    /// Requirements that the command can run without, at a cost.
    pub recommended: Vec<Requirement>,
}

impl Needs {
    /// Returns the requirements of a native build: clang and lld are recommended, but gcc suffices.
    pub fn native() -> Self {
        use Requirement::*;
        Self { required: vec![Compiler, Cmake, Ninja, Libclang], recommended: vec![Clang, Lld] }
    }
}

fn lacks_blas(toolchain: &Toolchain, vendor: &str) -> bool {
    !toolchain.blas.iter().any(|blas| blas.vendor == vendor && blas.source.is_none())
}

/// Returns the newest clang that is new enough.
pub(crate) fn clang(toolchain: &Toolchain) -> Option<&Compiler> {
    newest(toolchain, CompilerKind::Clang).filter(|clang| clang.version.major >= CLANG_AT_LEAST)
}

/// Returns the newest gcc that is new enough.
pub(crate) fn gcc(toolchain: &Toolchain) -> Option<&Compiler> {
    newest(toolchain, CompilerKind::Gcc).filter(|gcc| gcc.version.major >= GCC_AT_LEAST)
}

/// Returns the newest compiler of a kind.
pub(crate) fn newest(toolchain: &Toolchain, kind: CompilerKind) -> Option<&Compiler> {
    toolchain
        .compilers
        .iter()
        .filter(|compiler| compiler.kind == kind)
        .max_by_key(|compiler| compiler.version)
}

/// Parses the version of a tool.
pub(crate) fn version(tool: &Tool) -> Option<Version> {
    tool.version.parse().ok()
}
