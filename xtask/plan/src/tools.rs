//! The tools that a build uses, of those at hand.

use build_info::record::Tool;
use toolchain::{BlasLibrary, Compiler, Libclang, Rustc};

use crate::cross::Aim;
use crate::zig::Zig;

/// The tools of one build.
pub struct Tools {
    /// What the build is for.
    pub aim: Aim,
    /// C and C++ compiler.
    pub compiler: Compiler,
    /// zig, where it compiles.
    pub zig: Option<Zig>,
    /// Linker that the compiler is told to use; its own default if none.
    pub linker: Option<Tool>,
    /// CMake.
    pub cmake: Tool,
    /// Ninja.
    pub ninja: Tool,
    /// For bindgen.
    pub libclang: Option<Libclang>,
    /// The BLAS library, if there is one.
    pub blas: Option<BlasLibrary>,
    /// Rust compiler.
    pub rustc: Rustc,
}
