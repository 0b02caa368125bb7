//! OpenMP runtimes: the runtime that the engine must link, and the runtime that the finished program requests.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use audit::Dynamic;
use build_info::switches::OpenMp;
use plan::profile::{Linkage, Threading};
use toolchain::CompilerKind;

use super::state::Build;
use super::switches;

/// Names under which the loader finds the runtimes, without versions.
const RUNTIMES: [&str; 3] = ["libomp.so", "libgomp.so", "libiomp5.so"];

/// Returns the linker argument with the path of the runtime that CMake chose. A static ggml needs the argument on the
/// engine's command line; a shared ggml requests the runtime itself.
///
/// # Errors
/// If CMake's cache contains no runtime.
pub fn link_args(build: &Build) -> Result<Vec<String>> {
    if build.plan.threading != Threading::Openmp || build.plan.linkage != Linkage::Static {
        return Ok(Vec::new());
    }
    let cmake = match &build.borrowed {
        Some(borrowed) => borrowed.prefix.with_file_name("cmake"),
        None => build.folder.cmake(),
    };
    let cache = cmake.join("CMakeCache.txt");
    let text = std::fs::read_to_string(&cache).with_context(|| format!("cannot read {}", cache.display()))?;
    match chosen(&text) {
        Some(library) => Ok(vec![library.to_string()]),
        None => bail!(
            "CMake found no OpenMP runtime for {} {}, according to {}",
            build.plan.compiler.kind,
            build.plan.compiler.version,
            cache.display()
        ),
    }
}

/// Returns the path of the library in CMake's cache. The first name in `OpenMP_CXX_LIB_NAMES` is the name of the
/// runtime, and `OpenMP_<name>_LIBRARY` is its file (<https://cmake.org/cmake/help/v3.25/module/FindOpenMP.html>).
fn chosen(cache: &str) -> Option<&str> {
    let value = |name: &str| {
        let entry = cache.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        Some(entry.split_once('=')?.1).filter(|value| !value.is_empty() && !value.ends_with("-NOTFOUND"))
    };
    let runtime = value("OpenMP_CXX_LIB_NAMES")?.split(';').next()?;
    value(&format!("OpenMP_{runtime}_LIBRARY"))
}

/// Returns the runtime that the finished program or its libraries request from the loader, or `None`.
///
/// # Errors
/// If the plan requires a runtime, and the program requests none, two, or the runtime of another compiler.
pub fn linked(build: &Build) -> Result<Option<OpenMp>> {
    let mut named = BTreeSet::new();
    for file in programs(build)? {
        named.extend(needed(&file)?.into_iter().filter(|name| is_runtime(name)));
    }
    let plan = build.plan;
    let wanted = match plan.compiler.kind {
        CompilerKind::Clang => "libomp.so",
        CompilerKind::Gcc => "libgomp.so",
    };
    let mut names = named.into_iter();
    let library = match (plan.threading, names.next(), names.next()) {
        (Threading::Openmp, Some(name), None) if name.starts_with(wanted) => name,
        (Threading::Openmp, None, _) => {
            bail!("the profile has `threading = \"openmp\"`, but the program loads no OpenMP runtime")
        }
        (Threading::Openmp, Some(first), second) => bail!(
            "the profile has `threading = \"openmp\"`, for which {} needs only {wanted}, but the program \
             loads {first}{}",
            plan.compiler.kind,
            second.map_or(String::new(), |second| format!(" and {second}, and each would use all cores"))
        ),
        // A BLAS library may use its own runtime.
        (Threading::Threadpool | Threading::Upstream, Some(name), _) => name,
        (Threading::Threadpool | Threading::Upstream, None, _) => return Ok(None),
    };
    let file = match build.not_run()? {
        Some(_) => None,
        None => switches::ask(build)?.openmp.and_then(|found| found.file),
    };
    Ok(Some(OpenMp { library, file }))
}

/// Returns the engine and its shared libraries.
fn programs(build: &Build) -> Result<Vec<PathBuf>> {
    let mut all = vec![build.folder.engine()?];
    if build.plan.linkage == Linkage::Shared {
        let lib = build.folder.prefix().join("lib");
        for entry in std::fs::read_dir(&lib).with_context(|| format!("cannot list {}", lib.display()))? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "so") {
                all.push(path);
            }
        }
    }
    Ok(all)
}

fn is_runtime(name: &str) -> bool {
    RUNTIMES.iter().any(|runtime| name.starts_with(runtime))
}

/// Returns the libraries that the ELF file at `path` requests from the loader.
fn needed(path: &Path) -> Result<BTreeSet<String>> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let found =
        Dynamic::read(&bytes).with_context(|| format!("cannot parse {} as an executable", path.display()))?;
    Ok(found.libraries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_runtime_is_read_from_cmakes_cache() {
        let clang = "OpenMP_CXX_LIB_NAMES:STRING=omp\nOpenMP_C_LIB_NAMES:STRING=omp\n\
                     OpenMP_omp_LIBRARY:FILEPATH=/usr/lib/llvm-22/lib/libomp.so\n";
        let gcc = "OpenMP_CXX_LIB_NAMES:STRING=gomp;pthread\nOpenMP_gomp_LIBRARY:FILEPATH=/l/libgomp.so\n\
                   OpenMP_pthread_LIBRARY:FILEPATH=/l/libpthread.a\n";
        let cases = [
            (clang, Some("/usr/lib/llvm-22/lib/libomp.so")),
            (gcc, Some("/l/libgomp.so")),
            ("OpenMP_CXX_LIB_NAMES:STRING=NOTFOUND\n", None),
            (
                "OpenMP_CXX_LIB_NAMES:STRING=omp\nOpenMP_omp_LIBRARY:FILEPATH=OpenMP_omp_LIBRARY-NOTFOUND\n",
                None,
            ),
            ("", None),
        ];
        for (cache, expected) in cases {
            assert_eq!(chosen(cache), expected, "{cache}");
        }
    }

    #[test]
    fn what_a_program_asks_the_loader_for_is_read() {
        let own = std::env::current_exe().unwrap();
        let names = needed(&own).unwrap();
        assert!(names.iter().any(|name| name.starts_with("libc.so")), "{names:?}");
        assert!(!names.iter().any(|name| is_runtime(name)), "{names:?}");
        assert!(["libomp.so.5", "libgomp.so.1", "libiomp5.so"].into_iter().all(is_runtime));
        let text = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        assert!(needed(&text).unwrap_err().to_string().contains("as an executable"));
    }
}
