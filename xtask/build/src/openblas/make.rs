//! Build of OpenBLAS as one static library for one CPU, with only the single-precision routines.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};
use build_info::Host;
use build_info::words::count;
use plan::profile::Isa;
use serde::{Deserialize, Serialize};
use toolchain::{Compiler, NamedCpu, Toolchain};

use crate::process::{Log, Run};
use crate::ui::Ui;

/// Every input that determines the built library.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recipe {
    make: String,
    compiler: String,
    /// Arguments of make.
    arguments: BTreeMap<String, String>,
}

/// Minimum value of `NUM_THREADS`. The library reserves memory for this number of threads and can never use more.
const THREADS_AT_LEAST: usize = 64;

/// Returns the recipe for this compiler and CPU.
///
/// The library uses its own threads. ggml calls the library from a single thread and sets the library's number of
/// threads, so a library without threads would use only one core. OpenMP would add a runtime that nothing else needs.
///
/// # Errors
/// If GNU make is missing or the kernels for the CPU are unknown.
pub fn recipe(isa: &Isa, host: &Host, compiler: &Compiler, toolchain: &Toolchain) -> Result<Recipe> {
    let make = toolchain.make.as_ref().context(
        "cannot build OpenBLAS: GNU make is missing\nhint: install it (Debian: apt-get install make)",
    )?;
    let threads = host.topology.logical_cpus();
    let arguments = [
        ("TARGET", target(isa, host, toolchain.named_cpu.as_ref())?.to_string()),
        ("CC", compiler.cc.to_string_lossy().into_owned()),
        ("HOSTCC", compiler.cc.to_string_lossy().into_owned()),
        ("DYNAMIC_ARCH", "0".to_string()),
        ("USE_THREAD", "1".to_string()),
        ("USE_OPENMP", "0".to_string()),
        ("NUM_THREADS", threads.max(THREADS_AT_LEAST).to_string()),
        // ggml pins its threads itself.
        ("NO_AFFINITY", "1".to_string()),
        ("NO_SHARED", "1".to_string()),
        // Only cblas_sgemm is called.
        ("NO_LAPACK", "1".to_string()),
        ("NOFORTRAN", "1".to_string()),
        ("ONLY_CBLAS", "1".to_string()),
        ("BUILD_SINGLE", "1".to_string()),
    ];
    Ok(Recipe {
        make: make.path.to_string_lossy().into_owned(),
        compiler: format!("{} {}", compiler.kind, compiler.version),
        arguments: arguments.into_iter().map(|(name, value)| (name.to_string(), value)).collect(),
    })
}

/// Returns OpenBLAS's name for the kernels of `named`, or of the host if the profile names no CPU. OpenBLAS targets
/// later than SKYLAKEX differ only in bfloat16 kernels. OpenBLAS's own detection compares CPU models and selects the
/// slowest kernels for an unknown model.
fn target(isa: &Isa, host: &Host, named: Option<&NamedCpu>) -> Result<&'static str> {
    let has = |features: &[&str]| match named {
        Some(cpu) => features.iter().all(|feature| cpu.features.iter().any(|found| found == feature)),
        None => features.iter().all(|feature| host.cpu.features.contains(*feature)),
    };
    let avx512 = ["avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"];
    let zen = named.map_or(host.cpu.vendor == "AuthenticAMD", |cpu| cpu.name.starts_with("znver"));
    Ok(match host.arch.as_str() {
        "x86_64" if *isa == Isa::X86_64V2 => "NEHALEM",
        "x86_64" if *isa == Isa::X86_64V3 => "HASWELL",
        "x86_64" if has(&avx512) => "SKYLAKEX",
        "x86_64" if has(&["avx2", "fma"]) && zen => "ZEN",
        "x86_64" if has(&["avx2", "fma"]) => "HASWELL",
        "x86_64" if has(&["avx"]) => "SANDYBRIDGE",
        "x86_64" => "NEHALEM",
        "aarch64" if has(&["sve"]) && *isa == Isa::Native => "ARMV8SVE",
        "aarch64" => "ARMV8",
        other => bail!(
            "cannot build OpenBLAS: Anneal does not know the kernels for {other}\nhint: use `blas = \
             \"openblas\"`"
        ),
    })
}

/// Builds `source` and installs it into `prefix`.
///
/// # Errors
/// If make fails or the user stops the build.
pub fn run(recipe: &Recipe, source: &Path, prefix: &Path, log: &Log, ui: &Ui) -> Result<()> {
    let progress = ui.progress("openblas");
    let jobs = std::thread::available_parallelism().map_or(1, usize::from).to_string();
    let mut compiled = 0_u64;
    let make = |goal: &str, more: &[String]| {
        Run::new(&recipe.make, log)
            .dir(source)
            .args(["-j", jobs.as_str()])
            .args(recipe.arguments.iter().map(|(name, value)| format!("{name}={value}")))
            .args(more)
            .args([goal])
            // OpenBLAS's makefiles would read these variables, which are not part of the recipe.
            .without(|name| FOREIGN.contains(&name))
            .env("LC_ALL", "C.UTF-8")
    };
    let built = make("libs", &[]).watch(|_, line| {
        if line.contains(" -c ") {
            compiled += 1;
            progress.message(&format!("{} compiled", count(compiled, "file")));
        }
    });
    let installed =
        built.and_then(|()| make("install", &[format!("PREFIX={}", prefix.display())]).watch(|_, _| {}));
    progress.finish();
    installed.context(
        "cannot build OpenBLAS\nhint: try another compiler, another release (--blas-archive), or the \
         distribution's OpenBLAS (`blas = \"openblas\"`)",
    )?;
    for needed in ["lib/libopenblas.a", "include/cblas.h"] {
        if !prefix.join(needed).is_file() {
            bail!("OpenBLAS's make succeeded but did not create {needed}");
        }
    }
    Ok(())
}

/// Environment variables that OpenBLAS's makefiles read.
const FOREIGN: &[&str] = &[
    "ARCH",
    "BINARY",
    "CC",
    "CFLAGS",
    "CPPFLAGS",
    "DESTDIR",
    "FC",
    "FFLAGS",
    "HOSTCC",
    "LDFLAGS",
    "MAKEFLAGS",
    "MFLAGS",
    "PREFIX",
    "TARGET",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cpu_gets_the_kernels_it_can_run() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/hosts");
        let cases = [
            ("i3-6100", Isa::Native, "HASWELL"),
            ("ryzen-7950x", Isa::Native, "SKYLAKEX"),
            ("zen5-vm", Isa::Native, "SKYLAKEX"),
            ("zen5-vm", Isa::X86_64V2, "NEHALEM"),
            ("zen5-vm", Isa::X86_64V3, "HASWELL"),
            ("xeon-e5-2680", Isa::Native, "SANDYBRIDGE"),
            ("epyc-2s", Isa::Native, "ZEN"),
            ("neoverse", Isa::Native, "ARMV8SVE"),
            ("neoverse", Isa::X86_64V3, "ARMV8"),
        ];
        for (name, isa, expected) in cases {
            let text = std::fs::read(root.join(format!("{name}.json"))).unwrap();
            let host: Host = serde_json::from_slice(&text).unwrap();
            assert_eq!(target(&isa, &host, None).unwrap(), expected, "{name}");
        }
    }
}
