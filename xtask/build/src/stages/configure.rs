//! CMake configuration of llama.cpp.

use std::path::Path;

use anyhow::{Context, Result};
use base::exit;

use super::state::Build;
use super::{cuda, places, zig};
use crate::pgo::gcda;
use crate::process::{Run, Stream};
use crate::ui::Progress;

/// CMake script that is included at `project(ggml)` and runs after all of ggml's targets exist. A target's options
/// follow the global flags on the command line, so the target's options take precedence.
const SPARE_KERNELS: &str = "\
# No counters and no profile in ggml's CPU kernels: written by Anneal, see docs/src/build/pgo.md.
cmake_language(DEFER CALL target_compile_options ggml-cpu PRIVATE -fno-profile-generate -fno-profile-use)
";

/// Returns the inputs of the stage other than the plan.
pub fn input(build: &Build) -> Result<String> {
    let spared = build.plan.variant.as_ref().is_some_and(|variant| variant.spares_kernels);
    let scripts = zig::digest(build.plan, build.workspace)?;
    let maps: String = places::prefix_maps(build).iter().map(|map| format!(" {map}")).collect();
    Ok(format!("{}{}{scripts}{maps}", build.tree()?.path.display(), if spared { SPARE_KERNELS } else { "" }))
}

/// Checks that the sources contain the requested programs. CMake would only report a missing folder for each program.
fn check_programs(build: &Build) -> Result<()> {
    let asked = build.plan.definitions.get("LLAMA_BUILD_TOOLS").is_some_and(|value| value == "ON");
    let tools = build.tree()?.path.join("tools/llama-bench/CMakeLists.txt");
    if asked && !tools.is_file() {
        return Err(exit::usage(format!(
            "profile {} builds programs of llama.cpp, which the sources of --origin {} do not contain\nhint: add \
             --origin sdist or --origin git",
            build.plan.profile, build.plan.source.origin
        )));
    }
    Ok(())
}

/// Configures into an empty tree, because CMake would trust the incomplete cache of a stopped run.
///
/// # Errors
/// If CMake fails or the sources lack a program.
pub fn configure(build: &Build, progress: &mut Progress) -> Result<()> {
    check_programs(build)?;
    let launcher = build.launcher()?;
    let tree = build.folder.cmake();
    if tree.exists() {
        std::fs::remove_dir_all(&tree).with_context(|| format!("cannot clear {}", tree.display()))?;
    }
    let define = |name: &str, value: &Path| {
        let mut text = std::ffi::OsString::from(format!("-D{name}="));
        text.push(value);
        text
    };
    let spare = build.folder.path().join("spare-kernels.cmake");
    let spares_kernels = build.plan.variant.as_ref().is_some_and(|variant| variant.spares_kernels);
    if spares_kernels {
        crate::fs::write_atomically(&spare, SPARE_KERNELS.as_bytes())?;
    }
    let launchers = launcher.iter().flat_map(|launcher| {
        let cuda = build.plan.cuda.as_ref().map(|_| "CUDA");
        ["C", "CXX"]
            .into_iter()
            .chain(cuda)
            .map(move |language| define(&format!("CMAKE_{language}_COMPILER_LAUNCHER"), launcher))
    });
    let places = places::cmake_include(build)?;
    // ggml asks git for its version; without this limit git would report the version of this checkout.
    let (ceiling, folder) = build.tree()?.cmake_environment();
    Run::new(&build.plan.cmake.path, &build.log)
        .args(["-G", "Ninja", "-S"])
        .args([&build.tree()?.path])
        .args(["-B"])
        .args([&tree])
        .args(build.plan.cmake_flags())
        .args(cuda::definitions(build)?)
        .args([define("CMAKE_INSTALL_PREFIX", &build.folder.prefix())])
        .args(launchers)
        .args(places.map(|path| define("CMAKE_PROJECT_llama.cpp_INCLUDE", &path)))
        .args(spares_kernels.then(|| define("CMAKE_PROJECT_ggml_INCLUDE", &spare)))
        .envs(&build.environment()?)
        .env(ceiling, folder)
        .watch(|stream, line| {
            if stream == Stream::Out {
                progress.message(line.trim_start_matches("-- "));
            }
        })?;
    match build.plan.variant.as_ref().and_then(|variant| variant.gcda.as_ref()) {
        Some(counts) => gcda::lay_out(counts, &tree),
        None => Ok(()),
    }
}
