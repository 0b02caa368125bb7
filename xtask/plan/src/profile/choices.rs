//! Keys of a profile whose values are words.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! choice {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $spelling:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub enum $name {
            $($(#[$variant_doc])* #[serde(rename = $spelling)] $variant),+
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(match self { $($name::$variant => $spelling),+ })
            }
        }
    };
}

choice!(
    /// Instruction sets that the compilers may use.
    Isa {
        /// All of the build host's.
        Native = "native",
        /// The psABI level of CPUs with SSE4.2 (Nehalem, 2008), for tests with kernels of older CPUs.
        X86_64V2 = "x86-64-v2",
        /// The psABI level that CPUs since Haswell have; its counterpart on other architectures.
        X86_64V3 = "x86-64-v3",
        /// That counterpart on aarch64.
        Aarch64Dotprod = "armv8.2-a+dotprod",
        /// The baseline for the program, and kernels for every kind of CPU beside it, of which one is loaded.
        AllVariants = "all-variants",
        /// None beyond the psABI's baseline, and no kernel that is written for one.
        Scalar = "scalar",
        /// What llama.cpp chooses.
        Upstream = "upstream",
    }
);
choice!(
    /// Which machines the program is for.
    Target {
        /// Those of the architecture that builds it.
        Host = "host",
        /// aarch64 with Linux, whatever builds it.
        Aarch64 = "aarch64-unknown-linux-gnu",
    }
);
choice!(
    /// How the C++ compiler is chosen.
    CompilerChoice {
        /// clang 18 or later with lld, else gcc 11 or later.
        Best = "best",
        /// What CMake finds.
        System = "system",
        /// The newest clang, 18 or later.
        Clang = "clang",
        /// The newest gcc, 11 or later.
        Gcc = "gcc",
        /// The pinned zig: clang, for a glibc that is not here.
        Zig = "zig",
    }
);
choice!(
    /// How the engine links libllama.
    Linkage {
        /// Into the program.
        Static = "static",
        /// Beside the program.
        Shared = "shared",
    }
);
choice!(
    /// Who runs the threads.
    Threading {
        /// ggml's own pool.
        Threadpool = "threadpool",
        /// The compiler's own OpenMP runtime.
        Openmp = "openmp",
        /// What llama.cpp chooses: OpenMP where it is found.
        Upstream = "upstream",
    }
);
choice!(
    /// BLAS.
    Blas {
        /// None.
        Off = "off",
        /// OpenBLAS, as pkg-config finds it.
        Openblas = "openblas",
        /// OpenBLAS, built here for this CPU from pinned sources.
        OpenblasSource = "openblas-source",
        /// BLIS.
        Blis = "blis",
        /// Intel's MKL.
        Mkl = "mkl",
        /// What llama.cpp chooses: none on Linux.
        Upstream = "upstream",
    }
);
choice!(
    /// Which GPUs the program computes on, beside the CPU.
    Gpu {
        /// None.
        Off = "off",
        /// NVIDIA's.
        Cuda = "cuda",
    }
);
choice!(
    /// How quantised weights are multiplied with many tokens on NVIDIA's GPUs. Single tokens have kernels of their own
    /// (MMVQ).
    CudaMulMat {
        /// As llama.cpp chooses by the card: its own kernels (MMQ) on Turing and later, cuBLAS for large batches on Volta.
        Auto = "auto",
        /// Always MMQ.
        Mmq = "mmq",
        /// Always cuBLAS, on weights that are unpacked first.
        Cublas = "cublas",
    }
);
choice!(
    /// Link-time optimisation of ggml, libllama and the engine.
    Lto {
        /// None across files.
        Off = "off",
        /// Functions are imported from other files by their summaries; parallel.
        Thin = "thin",
        /// The whole program as one file; slow, and one core does it.
        Full = "full",
    }
);

choice!(
    /// Which code a profile is gathered for and applied to.
    PgoScope {
        /// llama.cpp and the engine.
        All = "all",
        /// llama.cpp and the engine's C++ shim.
        Cpp = "cpp",
        /// The engine's Rust.
        Rust = "rust",
    }
);

impl PgoScope {
    /// Whether C++ is in it.
    pub fn cpp(self) -> bool {
        self != PgoScope::Rust
    }

    /// Whether Rust is in it.
    pub fn rust(self) -> bool {
        self != PgoScope::Cpp
    }
}
