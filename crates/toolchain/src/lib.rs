//! Tools of a build: detects tools and their versions, checks that they fit together, and installs missing tools.

mod blas;
mod cache;
mod cuda;
mod discover;
mod libraries;
mod mismatch;
mod parse;
mod probe;
mod search;
pub mod setup;
#[cfg(test)]
mod testing;
mod tools;

pub use discover::discover;
pub use mismatch::{Mismatch, Severity, mismatches};
pub use search::SearchPath;
pub use tools::{
    AARCH64, BOLT_AT_LEAST, BlasLibrary, BlasThreading, CLANG_AT_LEAST, CMAKE_AT_LEAST, CUDA,
    CUDA_COMPILES_FOR, Compiler, CompilerKind, Cuda, CudaHome, Emulator, GCC_AT_LEAST, LIBCLANG_AT_LEAST,
    Libclang, NamedCpu, NvccHosts, Rustc, Toolchain, Version, ZIG, ZIG_CLANG,
};
