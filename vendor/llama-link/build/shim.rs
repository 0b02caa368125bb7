//! Compilation of the exception-safe shim, with the same flags as the other C++ code.

use std::path::Path;

use anyhow::{Context, Result};

use crate::link::Link;

/// Compiles `csrc/*.cpp` and links the result.
///
/// # Errors
/// If the compiler fails.
pub fn build(link: &Link, out: &Path) -> Result<()> {
    let mut build = cc::Build::new();
    build
        .warnings(false)
        .cpp(true)
        .std("c++17")
        .cpp_link_stdlib(None) // among `system` of link.json
        .files([
            "csrc/shim.cpp",
            "csrc/blas.cpp",
            "csrc/cuda_failure.cpp",
            "csrc/kernels.cpp",
            "csrc/memory.cpp",
            "csrc/operations.cpp",
            "csrc/placement.cpp",
            "csrc/remote.cpp",
            "csrc/rpc_guard.cpp",
            "csrc/imatrix.cpp",
            "csrc/sampler.cpp",
            "csrc/taken.cpp",
        ])
        .include(crate::HEADERS)
        .includes(&link.include)
        .flag("-fexceptions")
        .opt_level(2)
        // The alignment of the loop over the logits changes the sampling time by 5 %, and any edit can change the
        // alignment.
        .flag_if_supported("-falign-loops=64")
        .cargo_metadata(false);
    for flag in &link.shim_flags {
        build.flag(flag);
    }
    if let Some(headers) = &link.cuda {
        // `cuda.cpp` replaces the driver and cuBLAS, and loads them at run time.
        build.file("csrc/cuda.cpp").define("ANNEAL_CUDA", None);
        for folder in headers {
            // Warnings in NVIDIA's headers are suppressed.
            build.flag("-isystem").flag(folder);
        }
    }
    if let Some(cxx) = &link.cxx {
        build.compiler(cxx);
    }
    build.try_compile("anneal_shim").context("cannot compile csrc/*.cpp")?;
    println!("cargo::rustc-link-search=native={}", out.display());
    println!("cargo::rustc-link-lib=static:-bundle=anneal_shim");
    println!("cargo::rerun-if-changed=csrc");
    Ok(())
}
