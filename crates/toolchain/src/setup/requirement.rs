//! What a build may need, and whether it is there.

use std::fmt;

use build_info::record::Tool;
use serde::{Deserialize, Serialize};

use crate::tools::{
    AARCH64, BOLT_AT_LEAST, CLANG_AT_LEAST, CMAKE_AT_LEAST, CUDA, Compiler, CompilerKind, Cuda, GCC_AT_LEAST,
    LIBCLANG_AT_LEAST, Toolchain, Version, ZIG,
};

/// One thing that a profile or a command needs of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Requirement {
    /// A C and C++ compiler that builds llama.cpp: clang 18 or gcc 11, or later.
    Compiler,
    /// CMake 3.24 or later.
    Cmake,
    /// Ninja.
    Ninja,
    /// libclang with its headers, for bindgen.
    Libclang,
    /// clang 18 or later.
    Clang,
    /// The pinned zig.
    Zig,
    /// LLVM's linker, of the same version as clang.
    Lld,
    /// `llvm-profdata` and `llvm-ar` that read what both rustc and clang write.
    LlvmTools,
    /// `llvm-bolt` 20 or later.
    Bolt,
    /// OpenBLAS, as pkg-config finds it.
    Openblas,
    /// BLIS.
    Blis,
    /// Intel's MKL.
    Mkl,
    /// NVIDIA's CUDA toolkit, any that is whole.
    Cuda,
    /// The one that `setup` installs, or a later one.
    NewCuda,
    /// make, which builds OpenBLAS.
    Make,
    /// clang's OpenMP runtime, of clang's version; gcc brings its own.
    Openmp,
    /// git.
    Git,
    /// pip.
    Pip,
    /// What runs programs for aarch64 on other machines: qemu's user mode, and that architecture's C library.
    EmulatorAarch64,
    /// Rust's standard library for aarch64.
    RustAarch64,
    /// qemu's user mode for x86-64, by which the CPU guard is tested on CPUs that are not here.
    QemuUser,
    /// `cc` and `c++`, the system's own compilers.
    SystemCompiler,
    /// curl, with which install.sh fetches.
    Curl,
    /// wget, with which install.sh fetches if there is no curl.
    Wget,
    /// zstd, with which install.sh unpacks.
    Zstd,
    /// minisign, with which install.sh checks signatures.
    Minisign,
    /// dpkg, which installs Debian packages.
    Dpkg,
    /// `kill` as a program, not only as a shell builtin.
    Procps,
    /// `script`, `taskset`, `unshare` and others that minimal installations lack.
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
    /// Whether `toolchain` lacks it. `pip` says whether there is pip, which is no tool of a build.
    pub(crate) fn is_missing(self, toolchain: &Toolchain, pip: bool) -> bool {
        match self {
            Requirement::Compiler => clang(toolchain).is_none() && gcc(toolchain).is_none(),
            Requirement::Cmake => {
                toolchain.cmake.as_ref().and_then(version).is_none_or(|found| found < CMAKE_AT_LEAST)
            }
            Requirement::Ninja => toolchain.ninja.is_none(),
            // Version 0: a library whose name does not tell.
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
                // The newest of each; both come in one package.
                let lacks = |tools: &[Tool]| tools.first().is_none_or(|newest| newest.llvm_major < needed);
                lacks(&toolchain.llvm_profdata) || lacks(&toolchain.llvm_ar)
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
            Requirement::Lld => "lld of clang's version",
            Requirement::LlvmTools => "llvm-profdata and llvm-ar of rustc's LLVM",
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
            Requirement::EmulatorAarch64 => "qemu-aarch64 with aarch64's C library",
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

/// What someone needs, and what would make the build better.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Without one of these it cannot be done.
    pub required: Vec<Requirement>,
    /// Without these it can, at a cost.
    pub recommended: Vec<Requirement>,
}

impl Needs {
    /// What a native build takes: clang and lld are worth having, and gcc does.
    pub fn native() -> Self {
        use Requirement::*;
        Self { required: vec![Compiler, Cmake, Ninja, Libclang], recommended: vec![Clang, Lld] }
    }
}

fn lacks_blas(toolchain: &Toolchain, vendor: &str) -> bool {
    !toolchain.blas.iter().any(|blas| blas.vendor == vendor && blas.source.is_none())
}

/// The newest clang that is good enough.
pub(crate) fn clang(toolchain: &Toolchain) -> Option<&Compiler> {
    newest(toolchain, CompilerKind::Clang).filter(|clang| clang.version.major >= CLANG_AT_LEAST)
}

/// The newest gcc that is good enough.
pub(crate) fn gcc(toolchain: &Toolchain) -> Option<&Compiler> {
    newest(toolchain, CompilerKind::Gcc).filter(|gcc| gcc.version.major >= GCC_AT_LEAST)
}

/// The newest compiler of a family.
pub(crate) fn newest(toolchain: &Toolchain, kind: CompilerKind) -> Option<&Compiler> {
    toolchain
        .compilers
        .iter()
        .filter(|compiler| compiler.kind == kind)
        .max_by_key(|compiler| compiler.version)
}

/// The version of a tool, as numbers.
pub(crate) fn version(tool: &Tool) -> Option<Version> {
    tool.version.parse().ok()
}
