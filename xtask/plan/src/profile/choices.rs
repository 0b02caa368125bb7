//! Profile keys whose values are words.

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
    /// Target machines of the program.
    Target {
        /// Machines with the architecture of the build host.
        Host = "host",
        /// aarch64 with Linux, on any build host.
        Aarch64 = "aarch64-unknown-linux-gnu",
    }
);
choice!(
    /// Choice of the C++ compiler.
    CompilerChoice {
        /// clang 18 or later with lld, otherwise gcc 11 or later.
        Best = "best",
        /// Compiler that CMake finds by default.
        System = "system",
        /// Newest clang, 18 or later.
        Clang = "clang",
        /// Newest gcc, 11 or later.
        Gcc = "gcc",
        /// Pinned zig: a clang that compiles for a given glibc version.
        Zig = "zig",
    }
);
choice!(
    /// Linkage of libllama.
    Linkage {
        /// Libraries are linked into the program.
        Static = "static",
        /// Libraries are installed next to the program.
        Shared = "shared",
    }
);
choice!(
    /// Implementation of threads.
    Threading {
        /// ggml's own thread pool.
        Threadpool = "threadpool",
        /// OpenMP runtime that belongs to the compiler.
        Openmp = "openmp",
        /// llama.cpp's own choice: OpenMP if it is found.
        Upstream = "upstream",
    }
);
choice!(
    /// Kind of BLAS library.
    Blas {
        /// No BLAS.
        Off = "off",
        /// OpenBLAS, as pkg-config finds it.
        Openblas = "openblas",
        /// OpenBLAS, built on this machine for its CPU from pinned sources.
        OpenblasSource = "openblas-source",
        /// The BLIS library.
        Blis = "blis",
        /// Intel's MKL.
        Mkl = "mkl",
        /// llama.cpp's own choice: none on Linux.
        Upstream = "upstream",
    }
);
choice!(
    /// GPUs that the program computes on, in addition to the CPU.
    Gpu {
        /// No GPUs.
        Off = "off",
        /// NVIDIA's GPUs.
        Cuda = "cuda",
    }
);
choice!(
    /// Kernels that multiply quantised weights with many tokens on NVIDIA GPUs. Single tokens use separate kernels
    /// (MMVQ).
    CudaMulMat {
        /// llama.cpp's choice for each GPU: its own kernels (MMQ) on Turing and later, cuBLAS for large batches on
        /// Volta.
        Auto = "auto",
        /// Always MMQ.
        Mmq = "mmq",
        /// Always cuBLAS, after dequantising the weights.
        Cublas = "cublas",
    }
);
choice!(
    /// Link-time optimisation of ggml, libllama and the engine.
    Lto {
        /// No optimisation across files.
        Off = "off",
        /// Functions are imported from other files, guided by summaries and in parallel.
        Thin = "thin",
        /// The whole program is optimised as one file, which is slow and uses one core.
        Full = "full",
    }
);

choice!(
    /// Code that a PGO profile is recorded for and applied to.
    PgoScope {
        /// llama.cpp and the engine.
        All = "all",
        /// llama.cpp and the engine's C++ shim.
        Cpp = "cpp",
        /// Rust code of the engine.
        Rust = "rust",
    }
);

impl PgoScope {
    /// True if the scope includes C++.
    pub fn cpp(self) -> bool {
        self != PgoScope::Rust
    }

    /// True if the scope includes Rust.
    pub fn rust(self) -> bool {
        self != PgoScope::Cpp
    }
}
