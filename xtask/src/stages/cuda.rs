//! Builds for NVIDIA's GPUs on a machine that may have none: what stands in place of the driver and of cuBLAS where CMake
//! links programs of llama.cpp's own (the engine links it with its shim, `vendor/llama-link/build`), and how the engine is run.

use std::path::PathBuf;

use anyhow::{Context, Result};

use super::Build;
use crate::plan::{CudaPlan, Plan};
use crate::process::Run;

/// Where it lies in the checkout.
const SOURCE: &str = "vendor/llama-link/csrc/cuda.cpp";
/// The folder of the header that it includes.
const HEADERS: &str = "vendor/llama-sys/csrc";
/// What a build of the library alone makes.
const LIBRARY_ALONE: &str = "llama";

/// Compiles it and says how CMake is told of it; nothing for a build that has no programs, or no GPUs.
pub fn definitions(build: &Build) -> Result<Vec<String>> {
    let Some(cuda) = build.plan.cuda.as_ref().filter(|_| has_programs(&build.plan.targets)) else {
        return Ok(Vec::new());
    };
    let object = compile(build, cuda)?;
    Ok(["CUDA_cublas_LIBRARY", "CUDA_cuda_driver_LIBRARY"]
        .map(|name| format!("-D{name}={}", object.display()))
        .to_vec())
}

fn has_programs(targets: &[String]) -> bool {
    targets.iter().any(|target| target != LIBRARY_ALONE)
}

/// The object: the linker takes it as it takes a library, and needs no archiver.
fn compile(build: &Build, cuda: &CudaPlan) -> Result<PathBuf> {
    let object = build.folder.path().join("cuda.o");
    let root = build.workspace.root();
    let tree = &build.tree()?.path;
    let include = [root.join(HEADERS), tree.join("include"), tree.join("ggml/include")];
    Run::new(&build.plan.compiler.cxx, &build.log)
        .args(["-std=c++17", "-O2", "-fPIC", "-c"])
        .args([root.join(SOURCE)])
        .args(include.iter().flat_map(|folder| ["-I".into(), folder.clone()]))
        .args(cuda.include.iter().flat_map(|folder| ["-isystem".into(), folder.clone()]))
        .args(["-o"])
        .args([&object])
        .envs(&build.environment()?)
        .output()
        .with_context(|| {
            format!("cannot compile {SOURCE}, which stands in place of the driver and of cuBLAS")
        })?;
    Ok(object)
}

/// The flag for the engine's runs while it is built: a GPU is not needed where a program for GPUs is made, also not beside
/// the record of an earlier build, which promises one. Where there is one, the program takes it.
pub fn not_required(plan: &Plan) -> Option<&'static str> {
    plan.cuda.as_ref().map(|_| "--require-gpu=no")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_builds_with_programs_are_linked_by_cmake() {
        let targets = |names: &[&str]| names.iter().map(|name| name.to_string()).collect::<Vec<_>>();
        assert!(!has_programs(&targets(&["llama"])));
        assert!(has_programs(&targets(&["llama", "mtmd", "llama-bench"])));
    }
}
