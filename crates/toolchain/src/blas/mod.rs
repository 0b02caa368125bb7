//! BLAS libraries: exact files, headers and threading.
//!
//! This module parses the `.pc` files instead of calling pkg-config, because one call per name would take longer than
//! the rest of the search. Debian's BLIS has no `.pc` file, so its folders are searched.

mod pkg_config;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use pkg_config::PkgConfig;

use crate::search::{SearchPath, entries, file_name};
use crate::tools::{BlasLibrary, BlasThreading};

/// Names of `.pc` files with their vendors, each vendor's preferred names first.
///
/// `openblas64` and `mkl-*-ilp64-*` are excluded: they expect 64-bit integers, and ggml passes 32-bit ones. MKL's
/// layers are named explicitly, because `mkl-sdl` chooses its threading at run time by an environment variable. Intel's
/// OpenMP is preferred to GNU's, because Intel's is installed next to MKL, so no compiler has to find it.
const NAMES: &[(&str, &str)] = &[
    ("openblas", "openblas"),
    ("blis-mt", "blis"),
    ("blis", "blis"),
    ("mkl-dynamic-lp64-iomp", "mkl"),
    ("mkl-dynamic-lp64-seq", "mkl"),
];

/// Flavours of Debian's BLIS with their threading. The pthreads flavour comes first, because it loads no OpenMP
/// runtime into a process that otherwise uses ggml's own thread pool.
const BLIS_FLAVOURS: &[(&str, BlasThreading)] = &[
    ("pthread", BlasThreading::Pthread),
    ("openmp", BlasThreading::Openmp),
    ("serial", BlasThreading::Serial),
];

/// Returns the installed BLAS libraries, each vendor's preferred libraries first. The sources are the `.pc` files in
/// `PKG_CONFIG_PATH`, in `own_path` (pkg-config's answer to `--variable pc_path`) and in the folders of MKL's
/// installers, and the folders of Debian's BLIS. A library without its header or its file is ignored.
pub(crate) fn find(search: &SearchPath, own_path: &str) -> Vec<BlasLibrary> {
    let own: Vec<PathBuf> = std::env::split_paths(own_path.trim()).collect();
    let dirs: Vec<PathBuf> =
        search.pkg_config_path.iter().cloned().chain(own).chain(places_of_mkl(search)).collect();
    let from_files = NAMES.iter().filter_map(|(name, vendor)| {
        dirs.iter().find_map(|dir| from_pc(search, &dirs, &dir.join(format!("{name}.pc")), name, vendor))
    });
    let mut found: Vec<BlasLibrary> = from_files.collect();
    found.extend(debian_blis(search));
    let mut seen = BTreeSet::new();
    found.retain(|library| seen.insert(library.libraries.clone()));
    found
}

/// Returns the folders where `setup` installs MKL (Debian's pip adds `local`), and the folders of Intel's own
/// installer.
fn places_of_mkl(search: &SearchPath) -> Vec<PathBuf> {
    let intel = search.root.join("opt/intel/oneapi");
    let own = search.own_mkl().into_iter().flat_map(|mkl| [mkl.clone(), mkl.join("local")]);
    own.chain([intel.join("mkl/latest"), intel.join("compiler/latest")])
        .map(|prefix| prefix.join("lib/pkgconfig"))
        .collect()
}

fn from_pc(
    search: &SearchPath,
    dirs: &[PathBuf],
    path: &Path,
    name: &str,
    vendor: &str,
) -> Option<BlasLibrary> {
    let file = PkgConfig::read(path)?;
    let header = match vendor {
        "openblas" => "cblas.h",
        "blis" => "blis.h",
        _ => "mkl.h",
    };
    let fallbacks = ["usr/include", "usr/local/include"].map(|dir| search.root.join(dir));
    let include = file.include_dirs().into_iter().chain(fallbacks).find(|dir| dir.join(header).is_file())?;
    let mut libraries = files(search, &file, vendor);
    if libraries.len() < if vendor == "mkl" { 3 } else { 1 } {
        return None;
    }
    if name.ends_with("-iomp") {
        // MKL's threads need Intel's OpenMP, whose path is only in `openmp.pc`.
        let openmp = dirs.iter().find_map(|dir| PkgConfig::read(&dir.join("openmp.pc")));
        let beside = libraries[0].with_file_name("libiomp5.so");
        let runtime = openmp.and_then(|openmp| files(search, &openmp, "iomp5").into_iter().next());
        libraries.push(runtime.or_else(|| fs::canonicalize(beside).ok())?);
    }
    let threading = match vendor {
        "openblas" => openblas_threading(&file, &libraries[0]),
        "blis" => fs::read_to_string(include.join("blis.h")).ok().map(|header| blis_threading(&header)),
        _ if name.ends_with("-seq") => Some(BlasThreading::Serial),
        _ => Some(BlasThreading::Openmp),
    };
    Some(BlasLibrary {
        vendor: vendor.to_string(),
        version: file.version()?,
        pkg_config: Some(name.to_string()),
        threading,
        include,
        libraries,
        source: None,
    })
}

/// Returns the files of `vendor` that a `.pc` file links. Links are resolved, so that `update-alternatives` cannot
/// change a record.
fn files(search: &SearchPath, file: &PkgConfig, vendor: &str) -> Vec<PathBuf> {
    let (dirs, wanted) = file.libraries();
    let mut found = Vec::new();
    for library in wanted {
        let path = match library.strip_prefix("-l") {
            Some(name) if name.starts_with(vendor) => shared_object(search, &dirs, name),
            Some(_) => None,
            None => file_name(Path::new(&library)).contains(vendor).then(|| PathBuf::from(&library)),
        };
        found.extend(path.and_then(|path| fs::canonicalize(path).ok()));
    }
    found
}

/// Returns the path of `lib<name>.so` in `dirs` or in the linker's default folders.
fn shared_object(search: &SearchPath, dirs: &[PathBuf], name: &str) -> Option<PathBuf> {
    let lib = search.root.join("usr/lib");
    let multiarch = entries(&lib).into_iter().filter(|path| file_name(path).contains("-linux-"));
    let usual = [search.root.join("usr/lib64"), search.root.join("usr/local/lib"), lib.clone()];
    let mut all = dirs.iter().cloned().chain(multiarch).chain(usual);
    all.find_map(|dir| {
        [format!("lib{name}.so"), format!("lib{name}.dylib")]
            .iter()
            .map(|file| dir.join(file))
            .find(|path| path.is_file())
    })
}

/// Returns the threading of an OpenBLAS. Its `.pc` file shows if the library uses OpenMP. Its file name shows if the
/// library uses threads: `libopenblasp-r0.3.21.so` does, `libopenblas-r0.3.21.so` does not, and Fedora's
/// `libopenblaso` uses OpenMP.
fn openblas_threading(file: &PkgConfig, library: &Path) -> Option<BlasThreading> {
    if file.variable("openblas_config").is_some_and(|config| config.contains("USE_OPENMP=1")) {
        return Some(BlasThreading::Openmp);
    }
    match file_name(library).strip_prefix("libopenblas")?.chars().next()? {
        'p' => Some(BlasThreading::Pthread),
        'o' => Some(BlasThreading::Openmp),
        '-' => Some(BlasThreading::Serial),
        _ => None,
    }
}

/// Returns the threading of a BLIS from the top of its header, where `#if 1` precedes enabled options and `#if 0`
/// precedes disabled options.
fn blis_threading(header: &str) -> BlasThreading {
    let lines: Vec<&str> = header.lines().take(400).map(str::trim).collect();
    let on = |name: &str| {
        let define = format!("#define {name}");
        lines.windows(2).any(|pair| pair[1] == define && pair[0] != "#if 0")
    };
    match (on("BLIS_ENABLE_OPENMP"), on("BLIS_ENABLE_PTHREADS")) {
        (true, _) => BlasThreading::Openmp,
        (_, true) => BlasThreading::Pthread,
        _ => BlasThreading::Serial,
    }
}

/// Returns Debian's BLIS libraries: `usr/lib/<triple>/blis-<flavour>/libblis.so`, with the header
/// `usr/include/<triple>/blis-<flavour>/blis.h` and the version in `usr/share/blis-<flavour>-<triple>/config.mk`.
fn debian_blis(search: &SearchPath) -> Vec<BlasLibrary> {
    let usr = search.root.join("usr");
    let triples: Vec<PathBuf> =
        entries(&usr.join("lib")).into_iter().filter(|path| file_name(path).contains("-linux-")).collect();
    let flavours = BLIS_FLAVOURS.iter().flat_map(|flavour| triples.iter().map(move |lib| (flavour, lib)));
    flavours
        .filter_map(|((flavour, threading), lib)| {
            let triple = file_name(lib);
            let folder = format!("blis-{flavour}");
            let include = usr.join("include").join(triple).join(&folder);
            let library = fs::canonicalize(lib.join(&folder).join("libblis.so")).ok()?;
            if !include.join("blis.h").is_file() {
                return None;
            }
            let config = usr.join("share").join(format!("{folder}-{triple}")).join("config.mk");
            let config = fs::read_to_string(config).unwrap_or_default();
            let version = config
                .lines()
                .find_map(|line| Some(line.strip_prefix("VERSION")?.split_once(":=")?.1.trim().to_string()));
            Some(BlasLibrary {
                vendor: "blis".to_string(),
                version: version.unwrap_or_else(|| "unknown".to_string()),
                pkg_config: None,
                threading: Some(*threading),
                include,
                libraries: vec![library],
                source: None,
            })
        })
        .collect()
}
