//! Libraries that come with LLVM: libclang, which bindgen loads, and clang's runtimes for OpenMP and for profiles.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::search::{SearchPath, entries, file_name};
use crate::tools::{Compiler, CompilerKind, Libclang, Version};

/// Returns every libclang that is installed with its own headers: the libclang in `LIBCLANG_PATH` first, then the
/// newest.
pub(crate) fn libclangs(search: &SearchPath) -> Vec<Libclang> {
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for dir in libclang_dirs(search) {
        for path in entries(&dir) {
            let Some(named) = libclang_version(file_name(&path)) else { continue };
            let Ok(real) = fs::canonicalize(&path) else { continue };
            if !has_headers(search, &dir) || !seen.insert(real.clone()) {
                continue;
            }
            // The file behind the links has a more precise name: on Fedora `libclang.so.13` is `libclang.so.18.1.8`.
            let real = libclang_version(file_name(&real)).unwrap_or_default();
            found.push(Libclang { dir: dir.clone(), version: real.max(named) });
        }
    }
    found.sort_by_key(|libclang| std::cmp::Reverse(libclang.version));
    // bindgen uses LIBCLANG_PATH itself, so the user's setting is accepted even without headers.
    if let Some(wanted) = &search.libclang_path {
        let file = libclang_version(file_name(wanted));
        let dir = if file.is_some() { wanted.parent().unwrap_or(wanted) } else { wanted };
        let newest = || entries(dir).iter().filter_map(|path| libclang_version(file_name(path))).max();
        if let Some(version) = file.or_else(newest) {
            found.insert(0, Libclang { dir: dir.to_path_buf(), version });
        }
    }
    found
}

fn libclang_dirs(search: &SearchPath) -> Vec<PathBuf> {
    let mut dirs: Vec<PathBuf> =
        search.llvm_prefixes().iter().flat_map(|prefix| [prefix.join("lib"), prefix.join("lib64")]).collect();
    let lib = search.root.join("usr/lib");
    dirs.extend(entries(&lib).into_iter().filter(|path| file_name(path).contains("-linux-")));
    dirs.extend(
        ["usr/lib64", "usr/local/lib", "Library/Developer/CommandLineTools/usr/lib"]
            .map(|dir| search.root.join(dir)),
    );
    dirs.push(lib);
    dirs
}

/// Returns the version in a library's name: `libclang-22.so.22`, `libclang.so.18.1.8` or `libclang.so`; `None` for
/// another library. The version is 0 for a bare name and for `.so.13`, the ABI version of LLVM 13 and all later
/// versions.
fn libclang_version(name: &str) -> Option<Version> {
    let rest = name.strip_prefix("libclang")?;
    let (stem, behind) = match rest.strip_suffix(".dylib") {
        Some(stem) => (stem, ""),
        None => rest.split_once(".so")?,
    };
    let from_stem = match stem.strip_prefix('-') {
        Some(version) => Some(version.parse::<Version>().ok()?),
        None if stem.is_empty() => None,
        None => return None,
    };
    let from_behind: Option<Version> = behind.strip_prefix('.').and_then(|version| version.parse().ok());
    Some(match (from_stem, from_behind) {
        (Some(stem), Some(behind)) if stem.major == behind.major => behind,
        (Some(stem), _) => stem,
        (None, Some(behind)) if behind.major >= 9 && behind != Version::new(13, 0, 0) => behind,
        (None, _) => Version::default(),
    })
}

/// True if the compiler's own headers are installed. Debian packages the headers separately, and a libclang without
/// them fails at the first `#include <stddef.h>`.
fn has_headers(search: &SearchPath, dir: &Path) -> bool {
    let beside = [dir.join("clang"), dir.join("../lib/clang")];
    beside
        .iter()
        .flat_map(|clang| entries(clang))
        .chain(resource_dirs(search))
        .any(|version| version.join("include/stddef.h").is_file())
}

/// Returns the major versions of clang that have `omp.h` among their own headers; the library to link is in the same
/// package. If `omp.h` is among the system's headers, where any clang finds it, the list contains 0. gcc keeps its
/// own copy elsewhere.
pub(crate) fn openmp(search: &SearchPath) -> Vec<u32> {
    let mut majors = majors(resource_dirs(search), |dir| dir.join("include/omp.h").is_file());
    majors.extend(search.root.join("usr/include/omp.h").is_file().then_some(0));
    majors
}

/// Returns the major versions of clang that have a profile runtime for this machine. Debian packages the runtime
/// separately, and a clang without it cannot link with `-fprofile-generate`. `compilers` adds clangs in unusual
/// folders.
pub(crate) fn profile_runtimes(search: &SearchPath, compilers: &[Compiler]) -> Vec<u32> {
    let clangs = compilers.iter().filter(|compiler| compiler.kind == CompilerKind::Clang);
    let unusual = clangs.filter_map(|clang| {
        let real = fs::canonicalize(&clang.cc).ok()?;
        Some(real.parent()?.parent()?.join("lib/clang"))
    });
    let dirs = resource_dirs(search).into_iter().chain(unusual.flat_map(|clang| entries(&clang)));
    majors(dirs, |dir| entries(&dir.join("lib")).iter().any(|system| has_profile_runtime(system)))
}

/// True if `system`, such as `lib/linux` or `lib/x86_64-pc-linux-gnu`, contains the profile runtime of this
/// architecture. The first layout has the architecture in the file's name, the second in the folder's.
fn has_profile_runtime(system: &Path) -> bool {
    let arch = std::env::consts::ARCH;
    let here = file_name(system).starts_with(arch);
    entries(system).iter().any(|path| {
        let name =
            file_name(path).strip_prefix("libclang_rt.profile").and_then(|rest| rest.strip_suffix(".a"));
        name.is_some_and(|rest| (rest.is_empty() && here) || rest == "_osx" || rest == format!("-{arch}"))
    })
}

/// Returns the folders of clang's own headers and runtimes, such as `lib/clang/22`.
fn resource_dirs(search: &SearchPath) -> Vec<PathBuf> {
    let shared = ["usr/lib/clang", "usr/lib64/clang"].map(|clang| search.root.join(clang));
    let own = search.llvm_prefixes().into_iter().map(|prefix| prefix.join("lib/clang"));
    own.chain(shared).flat_map(|clang| entries(&clang)).collect()
}

/// Returns the major versions of the resource folders for which `has` is true, newest first.
fn majors(dirs: impl IntoIterator<Item = PathBuf>, has: impl Fn(&Path) -> bool) -> Vec<u32> {
    let mut majors: Vec<u32> = dirs
        .into_iter()
        .filter(|dir| has(dir))
        .filter_map(|dir| file_name(&dir).parse::<Version>().ok())
        .map(|version| version.major)
        .collect();
    majors.sort_by_key(|major| std::cmp::Reverse(*major));
    majors.dedup();
    majors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Machine;

    #[test]
    fn names_of_libclang_are_read() {
        let version = |major, minor, patch| Some(Version::new(major, minor, patch));
        let cases = [
            ("libclang-22.so.22", version(22, 0, 0)),
            ("libclang-22.so.1", version(22, 0, 0)),
            ("libclang-14.so.14.0.6", version(14, 0, 6)),
            ("libclang-14.so.13", version(14, 0, 0)),
            ("libclang.so.18.1.8", version(18, 1, 8)),
            ("libclang.so.20.1", version(20, 1, 0)),
            ("libclang.so.13", version(0, 0, 0)),
            ("libclang.so", version(0, 0, 0)),
            ("libclang.dylib", version(0, 0, 0)),
            ("libclang-cpp.so.22.1", None),
            ("libclang-cpp.so", None),
            ("libclang_rt.asan.so", None),
            ("libclangBasic.a", None),
            ("libLLVM.so", None),
        ];
        for (name, expected) in cases {
            assert_eq!(libclang_version(name), expected, "{name}");
        }
    }

    #[test]
    fn libclang_is_found_newest_first_and_once() {
        let machine = Machine::new();
        let multiarch = "usr/lib/x86_64-linux-gnu";
        machine.file(&format!("{multiarch}/libclang-22.so.22"), "");
        machine.file(&format!("{multiarch}/libclang-cpp.so.14"), "");
        machine.link("usr/lib/llvm-22/lib/libclang-22.so.1", "../../x86_64-linux-gnu/libclang-22.so.22");
        machine.file("usr/lib/llvm-14/lib/libclang-14.so.14.0.6", "");
        machine.file("usr/lib64/libclang.so.18.1.8", "");
        machine.link("usr/lib64/libclang.so.13", "libclang.so.18.1.8");
        machine.link("usr/lib64/libclang.so", "gone");
        assert_eq!(libclangs(&machine.search()), [], "no headers anywhere");
        machine.file("usr/lib/llvm-22/lib/clang/22/include/stddef.h", "");
        let mut search = machine.search();
        let found = |search: &SearchPath| -> Vec<(PathBuf, u32)> {
            let relative = |dir: &Path| dir.strip_prefix(machine.root()).unwrap_or(dir).to_path_buf();
            libclangs(search).iter().map(|found| (relative(&found.dir), found.version.major)).collect()
        };
        let expected = [
            ("usr/lib/llvm-22/lib".into(), 22),
            ("usr/lib64".into(), 18),
            ("usr/lib/llvm-14/lib".into(), 14),
        ];
        assert_eq!(found(&search), expected);
        search.libclang_path = Some(machine.file("opt/own/libclang-9.so", ""));
        assert_eq!(found(&search)[0], ("opt/own".into(), 9), "the user's own comes first");
        search.libclang_path = Some(machine.root().join("opt/own"));
        assert_eq!(found(&search)[0], ("opt/own".into(), 9), "named by its folder");
        search.libclang_path = Some(machine.root().join("gone"));
        assert_eq!(found(&search), expected, "a wrong LIBCLANG_PATH is passed over");
    }

    #[test]
    fn openmp_is_found_by_the_header_of_its_clang() {
        let machine = Machine::new();
        assert!(openmp(&machine.search()).is_empty());
        machine.file("usr/lib/llvm-22/lib/clang/22/include/omp.h", "");
        machine.file("usr/lib/llvm-19/lib/clang/19/include/stddef.h", "");
        machine.file("usr/lib/clang/18.1.8/include/omp.h", "");
        assert_eq!(openmp(&machine.search()), [22, 18]);
        machine.file("usr/include/omp.h", "");
        assert_eq!(openmp(&machine.search()), [22, 18, 0]);
    }

    #[test]
    fn a_profile_runtime_is_found_for_this_architecture_alone() {
        let arch = std::env::consts::ARCH;
        let machine = Machine::new();
        let clang = machine.file("opt/llvm/bin/clang", "");
        let compilers = [Compiler {
            kind: CompilerKind::Clang,
            cxx: clang.clone(),
            cc: clang,
            version: Version::new(21, 1, 0),
        }];
        let found = || profile_runtimes(&machine.search(), &compilers);
        machine.file("usr/lib/llvm-22/lib/clang/22/include/stddef.h", "");
        machine.file("usr/lib/llvm-22/lib/clang/22/lib/linux/libclang_rt.profile-i386.a", "");
        machine.file(&format!("usr/lib/llvm-22/lib/clang/22/lib/linux/libclang_rt.ctx_profile-{arch}.a"), "");
        machine.file("usr/lib/clang/19/lib/powerpc-unknown-linux-gnu/libclang_rt.profile.a", "");
        assert!(found().is_empty());
        machine.file(&format!("usr/lib/llvm-22/lib/clang/22/lib/linux/libclang_rt.profile-{arch}.a"), "");
        machine.file(&format!("usr/lib/clang/18.1.8/lib/{arch}-redhat-linux-gnu/libclang_rt.profile.a"), "");
        assert_eq!(found(), [22, 18]);
        machine.file("opt/llvm/lib/clang/21/lib/darwin/libclang_rt.profile_osx.a", "");
        assert_eq!(found(), [22, 21, 18]);
    }
}
