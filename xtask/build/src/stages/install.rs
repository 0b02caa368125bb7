//! Installed prefix: headers, libraries, and `link.json`, which lists the libraries for `llama-link`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use plan::profile::{Isa, Linkage};
use plan::{CudaPlan, IsaPlan, Plan, blas};
use serde::Serialize;

use super::folder::LINK;
use super::openmp;
use super::state::Build;
use super::variants;
use crate::fs;
use crate::process::Run;
use crate::ui::Progress;

/// Content of `link.json`, which `vendor/llama-link/build` reads. Paths are relative to the prefix unless absolute.
#[derive(Serialize)]
struct Link<'a> {
    schema: u32,
    kind: &'static str,
    include: &'static [&'static str],
    search: &'static [&'static str],
    libraries: Vec<String>,
    whole: &'static [&'static str],
    system: &'static [&'static str],
    rpath: Vec<String>,
    link_args: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    linker_script: Option<LinkerScript>,
    cc: PathBuf,
    cxx: PathBuf,
    libclang_dir: Option<&'a PathBuf>,
    shim_flags: Vec<&'a String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cuda: Option<&'a [PathBuf]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    guard_flags: Option<[&'static str; 1]>,
    isa_required: &'a [String],
    build_to_use: String,
}

/// Script that llama-link writes and passes to the linker.
#[derive(Serialize)]
struct LinkerScript {
    option: &'static str,
    text: String,
}

/// Mangled names that a program with kernels in separate files does not export, as patterns of a version script: functions
/// of Rust, and functions and tables of C++. Kernels only use C functions, the allocation functions of C++ (`_Zn`, `_Zd`)
/// and its types (`_ZTI`, `_ZTS`). The linker drops unused functions only if they are not exported.
const HIDDEN: &str = "{ local: _R*; _Z[0-9A-SU-Z]*; _ZT[A-HJ-RT-Zchv]*; };";

/// Returns the script with the version of a program's symbols. `None` if the program exports no symbols.
fn linker_script(plan: &Plan) -> Option<LinkerScript> {
    let script = match plan.zig {
        // zig does not pass version scripts of programs to its linker, LLD, which also reads them in this form.
        Some(_) => LinkerScript { option: "-T", text: format!("VERSION {{ {HIDDEN} }}\n") },
        None => LinkerScript { option: "--version-script", text: format!("{HIDDEN}\n") },
    };
    plan.isa.has_variants().then_some(script)
}

/// Installs the C++ part and writes `link.json`.
///
/// # Errors
/// If CMake fails or a file cannot be written.
pub fn install(build: &Build, progress: &mut Progress) -> Result<()> {
    let prefix = build.folder.prefix();
    if prefix.exists() {
        std::fs::remove_dir_all(&prefix).with_context(|| format!("cannot clear {}", prefix.display()))?;
    }
    Run::new(&build.plan.cmake.path, &build.log)
        .args(["--install"])
        .args([build.folder.cmake()])
        .envs(&build.environment()?)
        .watch(|_, line| progress.message(line.trim_start_matches("-- ")))?;

    if build.plan.isa.has_variants() {
        variants::install(&prefix, &build.folder.libraries())?;
        variants::check_buffers(build.plan, &build.folder.libraries())?;
    }
    write_link(build, &prefix)
}

/// Writes `link.json` for the libraries in `prefix`, which is or will become the prefix of this build.
///
/// # Errors
/// If the file cannot be written.
pub fn write_link(build: &Build, prefix: &Path) -> Result<()> {
    let mut link = link(build)?;
    let extension = if build.plan.linkage == Linkage::Static { ".a" } else { ".so" };
    link.libraries = libraries(&prefix.join("lib"), extension)?;
    fs::write_atomically(&prefix.join(LINK), &serde_json::to_vec_pretty(&link)?)
}

/// Reuses the C++ part of another build, with this build's own `link.json`, so that nothing is compiled again.
/// Files are shared as hard links if the file system supports them. Builds replace shared files and never modify
/// them.
///
/// # Errors
/// If a file cannot be linked or copied.
pub fn borrow(build: &Build, from: &Path) -> Result<()> {
    let prefix = build.folder.prefix();
    if prefix.exists() {
        std::fs::remove_dir_all(&prefix).with_context(|| format!("cannot clear {}", prefix.display()))?;
    }
    fs::link_tree(from, &prefix)?;
    write_link(build, &prefix)
}

/// Returns the inputs of the stage other than the plan: `link.json` without the libraries, so that a new version of
/// this source file causes a new `link.json`.
pub fn input(build: &Build) -> Result<String> {
    Ok(serde_json::to_string(&link(build)?)?)
}

/// Returns the content of `link.json` without the libraries.
fn link<'a>(build: &Build<'a>) -> Result<Link<'a>> {
    let plan = build.plan;
    let (kind, rpath): (_, &[&str]) = match plan.linkage {
        Linkage::Static => ("static", &[]),
        Linkage::Shared => ("dylib", &["$ORIGIN/../prefix/lib"]),
    };
    let library = plan.blas_library.as_ref();
    Ok(Link {
        schema: 1,
        kind,
        include: &["include"],
        search: &["lib"],
        libraries: Vec::new(),
        whole: if plan.isa.has_variants() { &["ggml-base"] } else { &[] },
        // zig links LLVM's C++ runtime.
        system: if plan.zig.is_some() {
            &["c++", "m", "pthread", "dl"]
        } else {
            &["stdc++", "m", "pthread", "dl"]
        },
        rpath: rpath
            .iter()
            .map(|path| path.to_string())
            .chain(library.into_iter().flat_map(blas::rpath))
            .chain(plan.cuda.iter().flat_map(|cuda| cuda.rpath(plan.is_for_others())))
            .collect(),
        link_args: plan
            .codegen
            .link
            .iter()
            .cloned()
            .chain(library.into_iter().flat_map(|library| blas::link_args(library, plan.linkage)))
            .chain(openmp::link_args(build)?)
            .chain(plan.cuda.iter().flat_map(CudaPlan::link_args))
            .collect(),
        linker_script: linker_script(plan),
        cc: build.compiler(&plan.compiler.cc)?,
        cxx: build.compiler(&plan.compiler.cxx)?,
        libclang_dir: plan.libclang.as_ref().map(|found| &found.dir),
        shim_flags: shim_flags(plan),
        cuda: plan.cuda.as_ref().map(|cuda| &*cuda.include),
        guard_flags: plan.zig.as_ref().map(|zig| [zig.for_any_cpu()]),
        isa_required: &plan.isa.required,
        build_to_use: build_to_use(&plan.isa),
    })
}

/// Returns the compiler flags of the kernels and of all other files.
fn shim_flags(plan: &Plan) -> Vec<&String> {
    let mut flags: Vec<&String> = plan.isa.flags.iter().collect();
    flags.extend(plan.codegen.cxx.iter().filter(|flag| !plan.isa.flags.contains(flag)));
    flags
}

/// Returns the advice that the CPU guard prints on a CPU that lacks an instruction set.
fn build_to_use(isa: &IsaPlan) -> String {
    match &isa.cpu {
        Some(cpu) => format!(
            "this build was made for {cpu}: use the portable build, or run `cargo xtask build-native` on this machine"
        ),
        None if isa.isa == Isa::Aarch64Dotprod.to_string() => {
            "this build needs an armv8.2-a CPU with dot products (Neoverse N1, Cortex-A76, 2018, or later): \
             run `cargo xtask build-native` on this machine"
                .to_string()
        }
        None if isa.names_cpu() => format!(
            "this build needs a {} CPU: use the portable build, or run `cargo xtask build-native` on this machine",
            isa.isa
        ),
        None if isa.isa == Isa::X86_64V2.to_string() => {
            "this build needs an x86-64-v2 CPU (Nehalem, 2008, or later): run `cargo xtask build-native` on \
             this machine"
                .to_string()
        }
        None => {
            "this build needs an x86-64-v3 CPU (Haswell, 2013, or later): run `cargo xtask build-native` on \
             this machine"
                .to_string()
        }
    }
}

/// Returns the installed libraries. Each library comes before the libraries that it uses, as single-pass linkers
/// require.
fn libraries(folder: &Path, extension: &str) -> Result<Vec<String>> {
    let rank = |name: &str| match name {
        "llama" => 0,
        "ggml" => 1,
        "ggml-base" => 3,
        _ => 2,
    };
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let file = entry?.file_name().to_string_lossy().into_owned();
        if let Some(name) = file.strip_prefix("lib").and_then(|rest| rest.strip_suffix(extension)) {
            names.push(name.to_string());
        }
    }
    names.sort_by_key(|name| (rank(name), name.clone()));
    for needed in ["llama", "ggml", "ggml-base"] {
        if !names.iter().any(|name| name == needed) {
            bail!(
                "{} contains no lib{needed}{extension}: the installation of llama.cpp is incomplete",
                folder.display()
            );
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_come_before_those_they_use() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["libggml-base.a", "libllama.a", "libggml-cpu.a", "libggml.a", "ggml.pc", "libx.so"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let names = libraries(folder.path(), ".a").unwrap();
        assert_eq!(names, ["llama", "ggml", "ggml-cpu", "ggml-base"]);
        std::fs::remove_file(folder.path().join("libllama.a")).unwrap();
        assert!(libraries(folder.path(), ".a").unwrap_err().to_string().contains("no libllama.a"));
    }
}
