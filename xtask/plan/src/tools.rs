//! Tools that a build uses.

use build_info::record::Tool;
use toolchain::{BlasLibrary, Compiler, Libclang, NamedCpu, Rustc};

use crate::cross::Aim;
use crate::zig::Zig;

/// Tools of one build.
pub struct Tools {
    /// Target of the build.
    pub aim: Aim,
    /// C and C++ compiler.
    pub compiler: Compiler,
    /// zig, if it is the compiler.
    pub zig: Option<Zig>,
    /// Linker that the compiler uses; `None` for the compiler's default.
    pub linker: Option<Tool>,
    /// CMake program.
    pub cmake: Tool,
    /// Ninja program.
    pub ninja: Tool,
    /// libclang, for bindgen.
    pub libclang: Option<Libclang>,
    /// BLAS library, if the build uses one.
    pub blas: Option<BlasLibrary>,
    /// Rust compiler.
    pub rustc: Rustc,
    /// Target CPU of the build, if the profile specifies a CPU.
    pub named_cpu: Option<NamedCpu>,
    /// qemu's user mode for x86-64.
    pub qemu_user: Option<Tool>,
}
