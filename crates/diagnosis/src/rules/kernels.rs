//! Causes related to ggml's CPU kernels: unused instruction sets, and missing optimisation.

use std::path::Path;

use build_info::diagnosis::SlowPhase;

use super::finding::{Finding, Rule, Slowdown};
use crate::observation::{KernelFacts, LibraryPurpose, Observation};

/// Kernels for CPUs before Haswell.
pub const WITHOUT_AVX2: Rule =
    Rule { id: "kernels-without-avx2", explains: &["kernels-without-avx512"], judge: without_avx2 };
/// Kernels without AVX-512, on a CPU that has it.
pub const WITHOUT_AVX512: Rule = Rule { id: "kernels-without-avx512", explains: &[], judge: without_avx512 };
/// Kernels that were compiled without optimisation.
pub const UNOPTIMISED: Rule = Rule { id: "kernels-unoptimised", explains: &[], judge: unoptimised };
/// Program that checks its own memory accesses.
pub const SANITIZER: Rule = Rule { id: "sanitizer", explains: &[], judge: sanitizer };

/// Minimum number of kernels for a judgement. Fewer kernels mean that the names are unknown.
const LEAST: usize = 8;

/// Returns the kernels, if the CPU computes and enough kernels were found.
fn kernels(o: &Observation) -> Option<&KernelFacts> {
    o.kernels.as_ref().filter(|kernels| kernels.found >= LEAST && !o.is_on_gpu())
}

fn count(kernels: &KernelFacts, set: &str) -> u64 {
    kernels.instruction_sets.get(set).copied().unwrap_or(0)
}

fn has(o: &Observation, sets: &[&str]) -> bool {
    sets.iter().all(|set| o.host.cpu.has(set))
}

fn file(path: &Path) -> String {
    path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned())
}

/// Build that uses the instruction sets of this CPU.
const REBUILD: &str = "use a build for this CPU: cargo xtask build-native, llama.cpp built here with \
                       GGML_NATIVE=ON, or a package with GGML_CPU_ALL_VARIANTS";

fn without_avx2(o: &Observation) -> Option<Finding> {
    let kernels = kernels(o)?;
    if !has(o, &["avx2", "fma", "f16c"]) || count(kernels, "avx2") > 0 || kernels.narrow * 2 < kernels.found {
        return None;
    }
    Some(Finding {
        title: "its kernels do not use AVX2, which this CPU has".to_string(),
        phase: SlowPhase::Both,
        slowdown: Slowdown::Estimated(3.0),
        evidence: vec![
            format!(
                "{} of {} kernels in {} are narrower than 256 bits",
                kernels.narrow,
                kernels.found,
                file(&kernels.path)
            ),
            "they contain no AVX2 instructions".to_string(),
        ],
        change: REBUILD.to_string(),
    })
}

fn without_avx512(o: &Observation) -> Option<Finding> {
    let kernels = kernels(o)?;
    if !has(o, &["avx512f", "avx512bw", "avx512dq", "avx512vl"]) || count(kernels, "avx512f") > 0 {
        return None;
    }
    // The rule above reports kernels that do not even use AVX2.
    if count(kernels, "avx2") == 0 {
        return None;
    }
    let offered: Vec<&str> = ["avx512f", "avx512_vnni", "avx512_bf16", "amx_int8"]
        .into_iter()
        .filter(|set| o.host.cpu.has(set))
        .collect();
    Some(Finding {
        title: "its kernels do not use AVX-512, which this CPU has".to_string(),
        phase: SlowPhase::Prefill,
        slowdown: Slowdown::Estimated(if o.host.cpu.has("avx512_vnni") { 1.3 } else { 1.1 }),
        evidence: vec![
            format!(
                "the {} kernels in {} contain no AVX-512 instructions",
                kernels.found,
                file(&kernels.path)
            ),
            format!("the CPU has {}", offered.join(", ")),
        ],
        change: REBUILD.to_string(),
    })
}

fn unoptimised(o: &Observation) -> Option<Finding> {
    let kernels = kernels(o)?;
    if kernels.unoptimised < 0.5 {
        return None;
    }
    Some(Finding {
        title: "its kernels were compiled without optimisation".to_string(),
        phase: SlowPhase::Both,
        slowdown: Slowdown::Estimated(5.0),
        evidence: vec![format!(
            "{:.0} % of the vector kernels in {} keep their operands on the stack",
            kernels.unoptimised * 100.0,
            file(&kernels.path)
        )],
        change: "build llama.cpp with CMAKE_BUILD_TYPE=Release".to_string(),
    })
}

fn sanitizer(o: &Observation) -> Option<Finding> {
    let library = o.libraries.iter().find(|library| library.purpose == LibraryPurpose::Sanitizer)?;
    Some(Finding {
        title: "a sanitizer checks its memory accesses".to_string(),
        phase: SlowPhase::Both,
        slowdown: Slowdown::Estimated(2.0),
        evidence: vec![format!("it maps {}", library.path.display())],
        change: "build llama.cpp without LLAMA_SANITIZE_ADDRESS and similar options".to_string(),
    })
}
