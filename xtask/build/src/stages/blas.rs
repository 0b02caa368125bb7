//! Check of the BLAS library: compares the library that the finished program calls with the planned library.
//!
//! A linker uses the first file with a matching name, and a loader the first match on its own path, so the plan and the
//! link command prove nothing. The check queries the program itself and the loader.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use build_info::Sha256;
use build_info::record::Blas;
use plan::blas::is_archive;
use serde::Deserialize;
use toolchain::BlasLibrary;

use super::state::Build;
use crate::process::Run;

/// Fields of `anneal info --json` that are read.
#[derive(Deserialize)]
struct Info {
    backends: Vec<String>,
    blas: Option<Linked>,
}

#[derive(Deserialize)]
struct Linked {
    library: String,
}

/// Returns the BLAS library for the record, or `None` if the plan has none.
///
/// # Errors
/// If the program does not use the planned BLAS library.
pub fn verify(build: &Build) -> Result<Option<Blas>> {
    let Some(planned) = &build.plan.blas_library else { return Ok(None) };
    if build.not_run()?.is_some() {
        return recorded(planned, None).map(Some);
    }
    let anneal = build.folder.engine()?;
    let info: Info = build.ask_engine()?;
    let loaded = Run::new("ldd", &build.log)
        .args([&anneal])
        .env("LC_ALL", "C")
        .output()
        .with_context(|| format!("cannot query the loader for the libraries of {}", anneal.display()))?;
    let found = compare(planned, &info, &loaded_files(&loaded))
        .with_context(|| format!("{} does not use the BLAS library of its profile", anneal.display()))?;
    Ok(Some(found))
}

/// Returns the entry for the record if the program uses the planned library.
fn compare(planned: &BlasLibrary, info: &Info, loaded: &[PathBuf]) -> Result<Blas> {
    let Some(linked) = info.blas.as_ref().filter(|_| info.backends.iter().any(|name| name == "BLAS")) else {
        bail!("the program has no BLAS backend, only {}", info.backends.join(", "));
    };
    for library in planned.libraries.iter().filter(|library| !is_archive(library)) {
        if !loaded.contains(library) {
            let others: Vec<String> = loaded.iter().map(|path| path.display().to_string()).collect();
            bail!(
                "{} is planned, but the loader loads {} instead\nhint: check LD_LIBRARY_PATH and LD_PRELOAD \
                 in the environment",
                library.display(),
                others.join(", ")
            );
        }
    }
    if !is_reported(planned, &linked.library) {
        bail!(
            "{} {} is planned, but the program reports {:?}",
            planned.vendor,
            planned.version,
            linked.library
        );
    }
    recorded(planned, Some(linked.library.clone()))
}

/// Returns the record's entry for the library. `reported` is the library as described by the program, or `None` if the
/// program cannot be run.
fn recorded(planned: &BlasLibrary, reported: Option<String>) -> Result<Blas> {
    Ok(Blas {
        vendor: planned.vendor.clone(),
        version: planned.version.clone(),
        threading: planned.threading.map(|threading| threading.to_string()),
        libraries: planned.libraries.clone(),
        reported,
        source: planned.source.clone().map(Sha256::try_from).transpose().map_err(anyhow::Error::msg)?,
    })
}

/// True if a library that reports itself as `words` has the planned vendor and version. Older MKLs report the version
/// in a different format than their files, so only the year is compared.
fn is_reported(planned: &BlasLibrary, words: &str) -> bool {
    let (name, version) = match planned.vendor.as_str() {
        "openblas" => ("OpenBLAS", planned.version.as_str()),
        "blis" => ("BLIS", planned.version.as_str()),
        _ => ("Math Kernel Library", planned.version.split('.').next().unwrap_or_default()),
    };
    // The version of Debian's BLIS may be unknown, because the library is found by its folder.
    words.contains(name) && (planned.version == "unknown" || words.contains(version))
}

/// Returns the files in the output of ldd, whose lines are like `libopenblas.so.0 => /usr/lib/…/libopenblas.so.0
/// (0x…)`.
fn loaded_files(text: &str) -> Vec<PathBuf> {
    text.lines()
        .filter_map(|line| {
            let line = line.trim();
            let path = line.split_once(" => ").map_or(line, |(_, path)| path);
            let path = Path::new(path.rsplit_once(" (").map_or(path, |(path, _)| path));
            if path.is_absolute() { std::fs::canonicalize(path).ok() } else { None }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use toolchain::BlasThreading;

    use super::*;

    fn planned(vendor: &str, version: &str, library: &Path) -> BlasLibrary {
        BlasLibrary {
            vendor: vendor.to_string(),
            version: version.to_string(),
            pkg_config: None,
            threading: Some(BlasThreading::Pthread),
            include: "/usr/include".into(),
            libraries: vec![library.to_path_buf()],
            source: None,
        }
    }

    fn info(backends: &[&str], library: Option<&str>) -> Info {
        Info {
            backends: backends.iter().map(|name| name.to_string()).collect(),
            blas: library.map(|library| Linked { library: library.to_string() }),
        }
    }

    #[test]
    fn the_loaders_answer_is_read_behind_its_links() {
        let folder = tempfile::Builder::new().prefix("a folder ").tempdir().unwrap();
        let folder = std::fs::canonicalize(folder.path()).unwrap();
        std::fs::create_dir_all(&folder).unwrap();
        let real = folder.join("libopenblasp-r0.3.21.so");
        std::fs::write(&real, "").unwrap();
        let link = folder.join("libopenblas.so.0");
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let text = format!(
            "\tlinux-vdso.so.1 (0x00007ffe)\n\tlibopenblas.so.0 => {} (0x00007f)\n\tlibx.so => not found\n\t{} \
             (0x1)\n",
            link.display(),
            real.display()
        );
        assert_eq!(loaded_files(&text), [real.clone(), real.clone()]);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_build_with_another_blas_is_refused() {
        let (one, other) = (Path::new("/l/libone.so"), Path::new("/l/libother.so"));
        let (both, cpu) = (&["CPU", "BLAS"][..], &["CPU"][..]);
        let says = "OpenBLAS 0.3.21 DYNAMIC_ARCH SkylakeX MAX_THREADS=64";
        let archive = Path::new("/l/libopenblas.a");
        let openblas = |library| planned("openblas", "0.3.21", library);
        let mkl = planned("mkl", "2026.2", one);
        let intel = "Intel(R) oneAPI Math Kernel Library Version 2026.2-Product Build 20260915";
        let cases = [
            (openblas(one), info(both, Some(says)), vec![one], None),
            (openblas(one), info(cpu, Some(says)), vec![one], Some("no BLAS backend, only CPU")),
            (openblas(one), info(both, None), vec![one], Some("no BLAS backend")),
            (openblas(one), info(both, Some(says)), vec![other], Some("/l/libone.so is planned")),
            (openblas(archive), info(both, Some(says)), vec![], None),
            (
                openblas(one),
                info(both, Some("OpenBLAS 0.3.29 X")),
                vec![one],
                Some("but the program reports"),
            ),
            (openblas(one), info(both, Some("BLIS 0.3.21")), vec![one], Some("but the program reports")),
            (mkl.clone(), info(both, Some(intel)), vec![one], None),
            (mkl, info(both, Some(says)), vec![one], Some("mkl 2026.2 is planned")),
        ];
        for (planned, info, loaded, refusal) in cases {
            let loaded: Vec<PathBuf> = loaded.into_iter().map(Path::to_path_buf).collect();
            match (compare(&planned, &info, &loaded), refusal) {
                (Ok(found), None) => assert_eq!(found.libraries, planned.libraries),
                (Err(error), Some(words)) => assert!(error.to_string().contains(words), "{error}"),
                (other, _) => panic!("{planned:?}: {other:?}"),
            }
        }
    }
}
