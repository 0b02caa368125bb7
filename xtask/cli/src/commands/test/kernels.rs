//! Command `test --kernels`: kernels of older CPUs, which run on any machine.

use build_info::Host;

/// Instruction sets that the kernels may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Level {
    /// Kernels for x86-64-v3 CPUs (Haswell, 2013, and later) without AVX-512 and AMX
    Avx2,
    /// Kernels for x86-64-v2 CPUs (Nehalem, 2008, and later) without AVX
    Sse42,
}

/// Instruction sets beyond x86-64-v3 for which ggml has kernels.
const BEYOND_AVX2: [&str; 3] = ["avx512f", "avx_vnni", "amx_tile"];

/// Tests whose results depend on llama.cpp: on the layout of the weights, on rounding, or on the CPU guard.
/// Continuous integration also runs these tests with llama.cpp's AVX2 kernels if Anneal has no kernels for this CPU, and
/// `test --build` runs them with another build. Running all tests twice would take too long. Each entry is a test
/// program with the modules to run; an empty list runs all modules.
pub const SENSITIVE: [(&str, &[&str]); 3] = [
    (
        "commands",
        &[
            "bench",
            "constrained",
            "fit",
            "generation",
            "guard",
            "logits",
            "parameters",
            "prompt_cache",
            "quantize",
        ],
    ),
    ("library", &["library", "sessions", "variant", "windows"]),
    ("serve", &[]),
];

/// Tests that continuous integration also runs with the default number of threads, as users do. These tests compute
/// several sequences at once, or choose the number of threads. Entries are as in [`SENSITIVE`].
pub const THREADED: [(&str, &[&str]); 2] =
    [("library", &[]), ("serve", &["alone", "crowd", "drafts", "pools", "shapes", "workloads"])];

/// Tests that continuous integration also runs with llama.cpp's kernels if this CPU uses Anneal's kernels by default.
/// llama.cpp's kernels round results for a batch differently from results for single tokens. Entries are as in
/// [`SENSITIVE`].
pub const ROUNDING: [(&str, &[&str]); 3] = [
    ("commands", &["fit", "generation", "logits", "parameters", "prompt_cache"]),
    ("library", &[]),
    ("serve", &["crowd", "disk", "drafts", "logprobs"]),
];

/// Returns the arguments of `cargo test` that run `modules` of the test program `program` of the packages `packages`.
pub fn chosen(packages: &[&str], program: &str, modules: &[&str]) -> Vec<String> {
    let program = ["--test", program, "--"];
    let all = packages.iter().chain(&program).map(ToString::to_string);
    all.chain(modules.iter().map(|module| format!("{module}::"))).collect()
}

impl Level {
    /// Build profile with these kernels. The profile otherwise equals `native`.
    pub fn profile(self) -> &'static str {
        match self {
            Level::Avx2 => "native+isa:x86-64-v3",
            Level::Sse42 => "native+isa:x86-64-v2",
        }
    }

    /// True if a native build for `host` uses instruction sets beyond this level.
    pub fn is_exceeded_by(self, host: &Host) -> bool {
        match self {
            Level::Avx2 => BEYOND_AVX2.iter().any(|feature| host.cpu.has(feature)),
            Level::Sse42 => host.cpu.has("avx"),
        }
    }
}

#[cfg(test)]
mod tests {
    use build_info::host::Cpu;
    use plan::testing::host;

    use super::*;

    #[test]
    fn a_native_build_on_a_cpu_with_avx2_alone_has_those_kernels_by_itself() {
        // Name of the machine, then true if its native kernels exceed AVX2, then true if they exceed SSE4.2.
        for (name, avx2, sse42) in
            [("epyc-2s", false, true), ("ryzen-7950x", true, true), ("xeon-e5-2680", false, true)]
        {
            let host = host(name);
            let exceeded = [Level::Avx2, Level::Sse42].map(|level| level.is_exceeded_by(&host));
            assert_eq!(exceeded, [avx2, sse42], "{name}: {:?}", host.cpu.features);
        }
        let old = Host { cpu: Cpu::default(), ..host("epyc-2s") };
        assert!(!Level::Sse42.is_exceeded_by(&old));
    }

    #[test]
    fn chosen_tests_are_there() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../engine/anneal/tests");
        for (program, modules) in SENSITIVE.into_iter().chain(THREADED).chain(ROUNDING) {
            let folder = folder.join(program);
            assert!(folder.join("main.rs").is_file(), "the test program {program} does not exist");
            for module in modules {
                assert!(folder.join(format!("{module}.rs")).is_file(), "{program} has no module {module}");
            }
        }
    }
}
