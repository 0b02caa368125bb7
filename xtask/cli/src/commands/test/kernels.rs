//! `test --kernels`: kernels of older CPUs, which run on any machine.

use build_info::Host;

/// Instruction sets that the kernels may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Level {
    /// x86-64-v3: CPUs since Haswell (2013) without AVX-512 and AMX
    Avx2,
    /// x86-64-v2: CPUs since Nehalem (2008) without AVX
    Sse42,
}

/// Instruction sets beyond x86-64-v3 for which ggml has kernels.
const BEYOND_AVX2: [&str; 3] = ["avx512f", "avx_vnni", "amx_tile"];

/// Tests that continuous integration also runs with AVX2 kernels, because they depend on the layout of the weights, on
/// rounding, or on the CPU guard. Running all tests twice would take too long.
pub const SENSITIVE: [&str; 14] = [
    "bench",
    "constrained",
    "fit",
    "generation",
    "guard",
    "library",
    "logits",
    "parameters",
    "prompt_cache",
    "quantize",
    "serve",
    "split",
    "variant",
    "windows",
];

impl Level {
    /// Build profile with these kernels. It is otherwise the same as `native`.
    pub fn profile(self) -> &'static str {
        match self {
            Level::Avx2 => "native+isa:x86-64-v3",
            Level::Sse42 => "native+isa:x86-64-v2",
        }
    }

    /// True if a native build for `host` uses more instruction sets.
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
        // Name of the machine, and whether its native kernels exceed AVX2 and SSE4.2.
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
    fn sensitive_tests_are_there() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../anneal/tests");
        for name in SENSITIVE {
            let there =
                folder.join(format!("{name}.rs")).is_file() || folder.join(name).join("main.rs").is_file();
            assert!(there, "anneal/tests has no test {name}");
        }
    }
}
