//! How OpenBLAS is built: one static library for one CPU, single precision first of all.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};
use build_info::Host;
use plan::profile::Isa;
use serde::{Deserialize, Serialize};
use toolchain::{Compiler, Toolchain};

use crate::process::{Log, Run};
use crate::ui::Ui;

/// Everything that decides on what comes out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recipe {
    make: String,
    compiler: String,
    /// Arguments of make.
    arguments: BTreeMap<String, String>,
}

/// As many threads as a library can ever use; memory is set aside for each.
const THREADS_AT_LEAST: usize = 64;

/// The recipe for this compiler and CPU.
///
/// With threads of its own: ggml multiplies from one thread and asks the library for as many as it has itself, so
/// a library without threads could never use a second core. OpenMP would bring a runtime that nothing else needs.
pub fn recipe(isa: Isa, host: &Host, compiler: &Compiler, toolchain: &Toolchain) -> Result<Recipe> {
    let make = toolchain
        .make
        .as_ref()
        .context("no GNU make, which builds OpenBLAS (Debian: apt-get install make)")?;
    let threads = host.topology.logical_cpus();
    let arguments = [
        ("TARGET", target(isa, host)?.to_string()),
        ("CC", compiler.cc.to_string_lossy().into_owned()),
        ("HOSTCC", compiler.cc.to_string_lossy().into_owned()),
        ("DYNAMIC_ARCH", "0".to_string()),
        ("USE_THREAD", "1".to_string()),
        ("USE_OPENMP", "0".to_string()),
        ("NUM_THREADS", threads.max(THREADS_AT_LEAST).to_string()),
        // ggml places its threads itself.
        ("NO_AFFINITY", "1".to_string()),
        ("NO_SHARED", "1".to_string()),
        // Nothing but cblas_sgemm is called.
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

/// OpenBLAS's name for the instruction sets (later ones than SKYLAKEX differ in bfloat16 only). Its own guess knows CPUs by their models, and takes the slowest kernels
/// for a model that is newer than itself.
fn target(isa: Isa, host: &Host) -> Result<&'static str> {
    let has = |features: &[&str]| features.iter().all(|feature| host.cpu.features.contains(*feature));
    let avx512 = ["avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"];
    let zen = host.cpu.vendor == "AuthenticAMD";
    Ok(match host.arch.as_str() {
        "x86_64" if isa == Isa::X86_64V2 => "NEHALEM",
        "x86_64" if isa == Isa::X86_64V3 => "HASWELL",
        "x86_64" if has(&avx512) => "SKYLAKEX",
        "x86_64" if has(&["avx2", "fma"]) && zen => "ZEN",
        "x86_64" if has(&["avx2", "fma"]) => "HASWELL",
        "x86_64" if has(&["avx"]) => "SANDYBRIDGE",
        "x86_64" => "NEHALEM",
        "aarch64" if has(&["sve"]) && isa == Isa::Native => "ARMV8SVE",
        "aarch64" => "ARMV8",
        other => bail!("which OpenBLAS kernels {other} takes is not known here: use `blas = \"openblas\"`"),
    })
}

/// Builds `source` and installs it into `prefix`.
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
            // These reach OpenBLAS's makefiles, and would be in no recipe.
            .without(|name| FOREIGN.contains(&name))
            .env("LC_ALL", "C.UTF-8")
    };
    let built = make("libs", &[]).watch(|_, line| {
        if line.contains(" -c ") {
            compiled += 1;
            progress.message(&format!("{compiled} files compiled"));
        }
    });
    let installed =
        built.and_then(|()| make("install", &[format!("PREFIX={}", prefix.display())]).watch(|_, _| {}));
    progress.finish();
    installed.context(
        "OpenBLAS could not be built. Another compiler or version may do: `blas = \"openblas\"` takes the \
         distribution's, --blas-archive another release",
    )?;
    for needed in ["lib/libopenblas.a", "include/cblas.h"] {
        if !prefix.join(needed).is_file() {
            bail!("OpenBLAS's make ended well and left no {needed}");
        }
    }
    Ok(())
}

/// Variables that OpenBLAS's makefiles read.
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
            assert_eq!(target(isa, &host).unwrap(), expected, "{name}");
        }
    }
}
