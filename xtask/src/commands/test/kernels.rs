//! Kernels of older CPUs, with which the program's tests run on any machine.

use build_info::Host;

/// Instruction sets that the kernels are held down to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Level {
    /// x86-64-v3: CPUs since Haswell (2013) without AVX-512 and AMX
    Avx2,
    /// x86-64-v2: CPUs since Nehalem (2008) without AVX
    Sse42,
}

/// Instruction sets beyond x86-64-v3 that ggml has kernels for.
const BEYOND_AVX2: [&str; 3] = ["avx512f", "avx_vnni", "amx_tile"];

/// The tests that continuous integration runs a second time with kernels for AVX2: those whose outcome hangs on the layout of
/// the weights, on rounding, or on what the CPU guard asks for. All tests with such kernels take as long as all tests.
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
    /// The build profile with such kernels. It differs from `native` in nothing else.
    pub fn profile(self) -> &'static str {
        match self {
            Level::Avx2 => "native+isa:x86-64-v3",
            Level::Sse42 => "native+isa:x86-64-v2",
        }
    }

    /// True if a native build for `host` has kernels beyond these.
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

    use super::*;
    use crate::plan::tests::host;

    #[test]
    fn a_native_build_on_a_cpu_with_avx2_alone_has_those_kernels_by_itself() {
        // Name of the machine, and the levels that its native kernels exceed.
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
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../anneal/tests");
        for name in SENSITIVE {
            let there =
                folder.join(format!("{name}.rs")).is_file() || folder.join(name).join("main.rs").is_file();
            assert!(there, "there is no test {name} in anneal/tests");
        }
    }
}
