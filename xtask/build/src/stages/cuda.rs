//! Builds for NVIDIA GPUs on a machine that may have no GPU.
//!
//! CMake links llama.cpp's own programs with a stand-in for the driver and cuBLAS. The engine links the stand-in with
//! its shim (`vendor/llama-link/build`). This module also defines how the engine runs during its build.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use build_info::Defaults;
use plan::{CudaPlan, Plan};

use super::state::Build;
use crate::process::Run;

/// Source file of the stand-in, relative to the checkout.
const SOURCE: &str = "vendor/llama-link/csrc/cuda.cpp";
/// Folder of the header that the stand-in includes.
const HEADERS: &str = "vendor/llama-sys/csrc";
/// Target of a build that makes only the library.
const LIBRARY_ALONE: &str = "llama";

/// Compiles the stand-in and returns CMake's definitions for it. Returns none for a build without programs or GPUs.
///
/// # Errors
/// If the stand-in cannot be compiled.
pub fn definitions(build: &Build) -> Result<Vec<String>> {
    let Some(cuda) = build.plan.cuda.as_ref().filter(|_| has_programs(&build.plan.targets)) else {
        return Ok(Vec::new());
    };
    Ok(in_place_of_libraries(&compile(build, cuda)?, &cuda.runtime))
}

/// Returns the definitions of cuBLAS and the driver for CMake. `object` replaces both but may be linked only once, so
/// CUDA's `runtime` takes the place of the driver: an archive may be listed twice.
fn in_place_of_libraries(object: &Path, runtime: &Path) -> Vec<String> {
    vec![
        format!("-DCUDA_cublas_LIBRARY={}", object.display()),
        format!("-DCUDA_cuda_driver_LIBRARY={}", runtime.display()),
    ]
}

fn has_programs(targets: &[String]) -> bool {
    targets.iter().any(|target| target != LIBRARY_ALONE)
}

/// Compiles the stand-in to an object file. The linker accepts the object file like an archive.
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
        .with_context(|| format!("cannot compile {SOURCE}, the stand-in for the driver and cuBLAS"))?;
    Ok(object)
}

/// Arguments and environment of the engine's runs during its build, see [`manner`].
#[derive(Clone, Debug, Default)]
pub struct Manner {
    /// Arguments of `anneal run` and `anneal logits`.
    pub flags: Vec<&'static str>,
    /// Environment variables; `None` removes a variable.
    pub variables: BTreeMap<String, Option<String>>,
}

/// Returns the arguments and environment for running the engine of `plan` during its build. They depend on the plan,
/// because the record does not exist yet or belongs to an earlier build. A program for GPUs can be built without a GPU;
/// if there is a GPU, the program uses it.
pub fn manner(plan: &Plan) -> Manner {
    plan.cuda.as_ref().map(|_| of_defaults(&plan.defaults)).unwrap_or_default()
}

fn of_defaults(defaults: &Defaults) -> Manner {
    let Defaults { kv_offload, op_offload, cuda_graphs, cuda_fusion, .. } = *defaults;
    let flag = |wanted: Option<bool>, on, off| if wanted.unwrap_or(true) { on } else { off };
    let variable = |name: &str, wanted: Option<bool>| {
        (wanted == Some(false)).then(|| (name.to_string(), Some("1".to_string())))
    };
    Manner {
        flags: vec![
            "--require-gpu=no",
            "--gpu-layers=auto",
            flag(kv_offload, "--kv-offload", "--no-kv-offload"),
            flag(op_offload, "--op-offload", "--no-op-offload"),
        ],
        variables: [
            variable("GGML_CUDA_DISABLE_GRAPHS", cuda_graphs),
            variable("GGML_CUDA_DISABLE_FUSION", cuda_fusion),
        ]
        .into_iter()
        .flatten()
        .collect(),
    }
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

    #[test]
    fn no_object_is_linked_twice() {
        let definitions = in_place_of_libraries(Path::new("/b/cuda.o"), Path::new("/t/libcudart_static.a"));
        let objects: Vec<&String> = definitions.iter().filter(|one| one.ends_with(".o")).collect();
        assert_eq!((definitions.len(), objects.len()), (2, 1), "{definitions:?}");
    }

    #[test]
    fn the_engine_is_run_as_the_record_will_say_and_needs_no_gpu() {
        let plain = of_defaults(&Defaults::default());
        assert_eq!(plain.flags, ["--require-gpu=no", "--gpu-layers=auto", "--kv-offload", "--op-offload"]);
        assert!(plain.variables.is_empty());
        let other = of_defaults(&Defaults {
            kv_offload: Some(false),
            cuda_graphs: Some(true),
            cuda_fusion: Some(false),
            ..Defaults::default()
        });
        assert!(other.flags.contains(&"--no-kv-offload") && other.flags.contains(&"--op-offload"));
        let names: Vec<&str> = other.variables.keys().map(String::as_str).collect();
        assert_eq!(names, ["GGML_CUDA_DISABLE_FUSION"]);
    }
}
