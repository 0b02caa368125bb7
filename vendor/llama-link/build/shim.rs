//! Compiles the exception-safe shim the way the rest of the C++ code is compiled.

use std::path::Path;

use anyhow::{Context, Result};

use crate::link::Link;

/// Compiles `csrc/*.cpp` and links them.
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
        // Where the loop over the logits begins decides on 5 % of a choice's time, and a change anywhere moves it.
        .flag_if_supported("-falign-loops=64")
        .cargo_metadata(false);
    for flag in &link.shim_flags {
        build.flag(flag);
    }
    if let Some(headers) = &link.cuda {
        // In place of the driver and of cuBLAS, which it loads.
        build.file("csrc/cuda.cpp").define("ANNEAL_CUDA", None);
        for folder in headers {
            // They are NVIDIA's, with warnings of their own.
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
