//! Definitions for CMake.

use std::collections::BTreeMap;

use build_info::record::Source;
use build_info::switches::{CMAKE, Switches};
use toolchain::CompilerKind;

use crate::cuda::CudaPlan;
use crate::isa::IsaPlan;
use crate::lto::LtoPlan;
use crate::profile::{Blas, Linkage, Profile, Threading};
use crate::tools::Tools;
use crate::{blas, zig};

/// Returns all definitions of a build except the install prefix, which depends on the build folder.
pub fn definitions(
    profile: &Profile,
    switches: &Switches,
    source: &Source,
    tools: &Tools,
    isa: &IsaPlan,
    lto: &LtoPlan,
    cuda: Option<&CudaPlan>,
) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let mut set = |name: &str, value: &str| {
        all.insert(name.to_string(), value.to_string());
    };

    if tools.aim.cross.is_some() {
        // These definitions tell CMake that this machine cannot run the programs, and llama.cpp which kernels to
        // build.
        set("CMAKE_SYSTEM_NAME", "Linux");
        set("CMAKE_SYSTEM_PROCESSOR", &tools.aim.arch);
    }
    // The engine only needs the library.
    for part in ["COMMON", "TESTS", "EXAMPLES", "TOOLS", "SERVER", "APP"] {
        set(&format!("LLAMA_BUILD_{part}"), "OFF");
    }
    // build-info.cmake would ask git, and git would report the repository that contains the build folder.
    set("LLAMA_BUILD_NUMBER", "0");
    set("LLAMA_BUILD_COMMIT", &source.version);
    // Fedora, RHEL and SUSE use lib64 by default.
    set("CMAKE_INSTALL_LIBDIR", "lib");
    // A cache would hide the cost of compiling.
    set("GGML_CCACHE", "OFF");
    set("CMAKE_BUILD_TYPE", &profile.build_type);
    set("CMAKE_C_COMPILER", &tools.compiler.cc.to_string_lossy());
    set("CMAKE_CXX_COMPILER", &tools.compiler.cxx.to_string_lossy());
    set("CMAKE_MAKE_PROGRAM", &tools.ninja.path.to_string_lossy());
    // CMake tests nvcc with the same flags. If nvcc's host compiler is gcc, the flags are omitted, because gcc does not
    // know them.
    let known = cuda.is_none_or(|cuda| cuda.host_compiler.kind == CompilerKind::Clang);
    if let Some(linker) = tools.linker.as_ref().filter(|_| known) {
        // clang accepts a path, so it does not use a different linker version from the search path.
        let flag = format!("--ld-path={}", linker.path.display());
        set("CMAKE_EXE_LINKER_FLAGS", &flag);
        set("CMAKE_SHARED_LINKER_FLAGS", &flag);
    }

    if tools.zig.is_some() {
        set("CMAKE_AR", zig::AR);
        set("CMAKE_RANLIB", zig::RANLIB);
        // For each set of flags, zig compiles the C++ runtime once, which takes minutes. With this definition, the test
        // programs of CMake's configuration use the same runtime as the build.
        set("CMAKE_TRY_COMPILE_CONFIGURATION", "Release");
    }
    for (name, tool) in [("CMAKE_AR", &lto.ar), ("CMAKE_RANLIB", &lto.ranlib)] {
        if let Some(tool) = tool {
            set(name, &tool.to_string_lossy());
        }
    }

    match profile.linkage {
        Linkage::Static => {
            set("BUILD_SHARED_LIBS", "OFF");
            // rustc links position-independent executables.
            set("CMAKE_POSITION_INDEPENDENT_CODE", "ON");
        }
        // Upstream's default. llama.cpp sets no run path, so the libraries would not find each other without these
        // definitions.
        Linkage::Shared => {
            set("BUILD_SHARED_LIBS", "ON");
            let folders = ["$ORIGIN".to_string()].into_iter().chain(tools.blas.iter().flat_map(blas::rpath));
            set("CMAKE_INSTALL_RPATH", &folders.collect::<Vec<_>>().join(";"));
        }
    }
    match profile.threading {
        Threading::Threadpool => set("GGML_OPENMP", "OFF"),
        Threading::Openmp => set("GGML_OPENMP", "ON"),
        Threading::Upstream => {}
    }
    match profile.blas {
        Blas::Off => set("GGML_BLAS", "OFF"),
        Blas::Openblas | Blas::OpenblasSource | Blas::Blis | Blas::Mkl | Blas::Upstream => {}
    }
    if profile.rpc {
        // RPC is off by default.
        set("GGML_RPC", "ON");
        // RDMA is on by default if CMake finds libibverbs. The program would then require libibverbs.
        set("GGML_RPC_RDMA", "OFF");
    }
    for (name, value) in cuda.into_iter().flat_map(CudaPlan::definitions) {
        set(name, &value);
    }
    for (name, value) in tools.blas.iter().flat_map(blas::definitions) {
        set(name, &value);
    }
    // In llama.cpp's own build, the switches of Anneal's patches are off.
    for switch in CMAKE {
        let on = (switch.get)(switches);
        if on != switch.upstream() {
            set(switch.option, if on { "ON" } else { "OFF" });
        }
    }
    for (name, value) in isa.definitions.iter().chain(&profile.definitions) {
        set(name, value);
    }
    all
}
