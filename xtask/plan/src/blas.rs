//! BLAS library that a build links, and its flags.

use std::path::Path;

use anyhow::{Result, bail};
use toolchain::{BlasLibrary, BlasThreading, Toolchain};

use crate::profile::{Blas, Linkage};

/// Names that CMake, the linker and the checks use for a vendor's library.
struct Vendor {
    /// Value of `GGML_BLAS_VENDOR`: the name that FindBLAS uses.
    cmake: &'static str,
    /// Definition that ggml-blas is compiled with. The definition selects the header and the function that sets the
    /// number of threads.
    define: &'static str,
    /// Function that ggml calls before every multiplication to set the library's number of threads.
    set_threads: &'static str,
    /// Function that returns the library's version.
    version: &'static str,
}

fn vendor(library: &BlasLibrary) -> Vendor {
    let (cmake, define, set_threads, version) = match library.vendor.as_str() {
        "blis" => ("FLAME", "GGML_BLAS_USE_BLIS", "bli_thread_set_num_threads", "bli_info_get_version_str"),
        "mkl" => ("Intel10_64lp", "GGML_BLAS_USE_MKL", "MKL_Set_Num_Threads", "MKL_Get_Version_String"),
        _ => ("OpenBLAS", "GGML_BLAS_USE_OPENBLAS", "openblas_set_num_threads", "openblas_get_config"),
    };
    Vendor { cmake, define, set_threads, version }
}

/// Returns the library that a profile requests.
pub fn choose(blas: Blas, toolchain: &Toolchain, notes: &mut Vec<String>) -> Result<Option<BlasLibrary>> {
    let (vendor, profile) = match blas {
        Blas::Off | Blas::Upstream => return Ok(None),
        Blas::Openblas | Blas::OpenblasSource => ("openblas", blas),
        Blas::Blis => ("blis", blas),
        Blas::Mkl => ("mkl", blas),
    };
    let built = blas == Blas::OpenblasSource;
    let Some(library) =
        toolchain.blas.iter().find(|library| library.vendor == vendor && library.source.is_some() == built)
    else {
        if built {
            bail!(
                "OpenBLAS is not built yet\nhint: `cargo xtask build` builds it for a profile with `blas = \
                 \"{profile}\"`"
            );
        }
        bail!(
            "cannot find {vendor} and its headers with pkg-config or in the usual folders (Debian: \
             {})\nhint: `cargo xtask setup --profile NAME` installs the tools and libraries that the \
             profile NAME needs",
            match blas {
                Blas::Blis => "libblis-pthread-dev",
                Blas::Mkl => "mkl-devel and mkl-include from pip",
                _ => "libopenblas-dev",
            }
        );
    };
    notes.push(format!(
        "this build multiplies matrices with {} {} ({}); on a Zen 5, prefill with OpenBLAS 0.3.21 was 0.63 \
         times as fast as without BLAS, so compare this build with `native`",
        library.vendor,
        library.version,
        library.threading.map_or("unknown threading".to_string(), |threading| match threading {
            BlasThreading::Serial => "without threads".to_string(),
            threads => format!("{threads} threads"),
        })
    ));
    Ok(Some(library.clone()))
}

/// Returns the definitions for CMake, which specify the files. Without these definitions, FindBLAS would use the first
/// library that it finds, and ggml would use the headers of another library.
pub fn definitions(library: &BlasLibrary) -> [(&'static str, String); 4] {
    let files: Vec<String> =
        library.libraries.iter().map(|path| path.to_string_lossy().into_owned()).collect();
    [
        ("GGML_BLAS", "ON".to_string()),
        ("GGML_BLAS_VENDOR", vendor(library).cmake.to_string()),
        ("BLAS_LIBRARIES", files.join(";")),
        ("BLAS_INCLUDE_DIRS", library.include.to_string_lossy().into_owned()),
    ]
}

/// Returns the definition of the vendor, which the compile command of ggml-blas must contain.
pub fn expected_define(library: &BlasLibrary) -> String {
    format!("-D{}", vendor(library).define)
}

/// Returns the arguments that link exactly this library into the engine.
pub fn link_args(library: &BlasLibrary, linkage: Linkage) -> Vec<String> {
    let vendor = vendor(library);
    let mut args = Vec::new();
    if linkage == Linkage::Static {
        // ggml gives BLAS as many threads as ggml itself uses. The wrapper (csrc/blas.cpp) uses the engine's own
        // setting instead. A shared ggml does not call the wrapper. In that case, the engine must not find the
        // function, because the engine would assume that ggml calls the wrapper.
        args.push(format!("-Wl,--wrap={}", vendor.set_threads));
    }
    // ggml does not call this function, so the linker would omit it from an archive, and the build could not report
    // its BLAS library.
    args.push(format!("-Wl,-u,{}", vendor.version));
    if library.libraries.iter().any(|path| is_archive(path)) {
        // ggml's reference to this function resolves to the wrapper, and the wrapper's own reference to the function is
        // weak.
        args.push(format!("-Wl,-u,{}", vendor.set_threads));
    }
    // MKL's layers call each other without listing each other as dependencies.
    let layers = library.libraries.len() > 1;
    args.extend(layers.then(|| "-Wl,--no-as-needed".to_string()));
    args.extend(library.libraries.iter().map(|path| path.to_string_lossy().into_owned()));
    args.extend(layers.then(|| "-Wl,--as-needed".to_string()));
    args
}

/// Returns the run path with which the loader finds exactly this library, even after `update-alternatives`.
pub fn rpath(library: &BlasLibrary) -> Vec<String> {
    let mut folders: Vec<String> = library
        .libraries
        .iter()
        .filter(|path| !is_archive(path))
        .filter_map(|path| Some(path.parent()?.to_string_lossy().into_owned()))
        .collect();
    folders.dedup();
    folders
}

/// True if the library is an archive, which becomes part of the program.
pub fn is_archive(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "a")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn library(vendor: &str, files: &[&str]) -> BlasLibrary {
        BlasLibrary {
            vendor: vendor.to_string(),
            version: "1.0".to_string(),
            pkg_config: None,
            threading: Some(BlasThreading::Pthread),
            include: "/i".into(),
            libraries: files.iter().map(|file| format!("/l/{file}").into()).collect(),
            source: None,
        }
    }

    #[test]
    fn a_library_that_is_not_there_is_refused_with_its_package() {
        let built = BlasLibrary { source: Some("ab".to_string()), ..library("openblas", &["libopenblas.a"]) };
        let cases = [
            (Blas::Openblas, vec![], Some("libopenblas-dev")),
            (Blas::Openblas, vec![built.clone()], Some("libopenblas-dev")),
            (Blas::Openblas, vec![library("openblas", &["libopenblas.so"])], None),
            (Blas::OpenblasSource, vec![library("openblas", &["libopenblas.so"])], Some("not built yet")),
            (Blas::OpenblasSource, vec![built], None),
            (Blas::Blis, vec![library("openblas", &["libopenblas.so"])], Some("libblis-pthread-dev")),
            (Blas::Mkl, vec![], Some("mkl-devel")),
            (Blas::Mkl, vec![library("mkl", &["a.so"])], None),
        ];
        for (blas, blas_libraries, refusal) in cases {
            let toolchain = Toolchain { blas: blas_libraries, ..Toolchain::default() };
            match (choose(blas, &toolchain, &mut Vec::new()), refusal) {
                (Ok(Some(_)), None) => {}
                (Err(error), Some(words)) => assert!(error.to_string().contains(words), "{blas}: {error}"),
                (other, _) => panic!("{blas}: {other:?}"),
            }
        }
        assert_eq!(choose(Blas::Off, &Toolchain::default(), &mut Vec::new()).unwrap(), None);
    }

    #[test]
    fn the_linker_is_given_files_and_a_place_to_find_them_again() {
        let cases = [
            (
                library("openblas", &["libopenblasp.so"]),
                "-Wl,--wrap=openblas_set_num_threads -Wl,-u,openblas_get_config /l/libopenblasp.so",
                vec!["/l"],
            ),
            (
                library("blis", &["libblis.so.4"]),
                "-Wl,--wrap=bli_thread_set_num_threads -Wl,-u,bli_info_get_version_str /l/libblis.so.4",
                vec!["/l"],
            ),
            (
                library("mkl", &["a.so", "b.so"]),
                "-Wl,--wrap=MKL_Set_Num_Threads -Wl,-u,MKL_Get_Version_String -Wl,--no-as-needed /l/a.so /l/b.so \
                 -Wl,--as-needed",
                vec!["/l"],
            ),
            (
                library("openblas", &["libopenblas.a"]),
                "-Wl,--wrap=openblas_set_num_threads -Wl,-u,openblas_get_config -Wl,-u,openblas_set_num_threads \
                 /l/libopenblas.a",
                vec![],
            ),
        ];
        for (library, args, folders) in cases {
            assert_eq!(link_args(&library, Linkage::Static).join(" "), args);
            let shared = link_args(&library, Linkage::Shared);
            assert!(shared.iter().all(|arg| !arg.contains("--wrap")), "{shared:?}");
            assert_eq!(rpath(&library), folders);
        }
    }
}
