//! Wheels of NVIDIA's CUDA toolkit, which need no installer, no root and, for compiling, no GPU.

use super::wheels::pin;

/// Wheels with their versions and the SHA-256 of their files for x86-64 and aarch64; pip accepts no other files. The
/// wheels contain nvcc, its headers and programs (crt, nvvm), the runtime, CCCL's headers, and cuBLAS. Builds need
/// cuBLAS's headers, and some programs need its library.
const WHEELS: [(&str, &str, [&str; 2]); 6] = [
    (
        "nvidia-cuda-nvcc",
        "13.5.37",
        [
            "f5c4f7ead5d964fb4af42bbf1e6d3ec3c1e6e9d83b53749f691d387e7fcaa3a7",
            "588eda18eb5076ae859fe272844b526459228af22df0b117f54eec3aa82bc9c8",
        ],
    ),
    (
        "nvidia-cuda-crt",
        "13.5.37",
        [
            "e898b7f73d3035fa89915a3f7bf3b54a73e90249746111aed295822c4729bb29",
            "9ed2c565fdf3244fa6719769a80a466b85bfd4b1467ea339353bc91c971d09e0",
        ],
    ),
    (
        "nvidia-nvvm",
        "13.5.37",
        [
            "c41bfa362e407405163f103c2229f0765f8cc2ed7d148b754dc77f228bf7e070",
            "b659bd3115b7ac7ec8931e67d0e2c0dd09cd35b08a6a7372df6f8f22c67da80a",
        ],
    ),
    (
        "nvidia-cuda-runtime",
        "13.5.37",
        [
            "df2b79a8852f10d1fef8c848489c49eebb5754051bf870202a862831412b179d",
            "de2dc5a7367974228b0a69588a9acc9340d3768bef1bf38bf0801eb08497cd2d",
        ],
    ),
    (
        "nvidia-cuda-cccl",
        "13.3.5.0.6",
        [
            "d5230098fa2df5021e1a00c0c4eee41797671a91119d31e892463e5ccf3ee326",
            "6f30b8076b3e69951c459c94ae190bde51924b320076ebaec376d36848b4c76e",
        ],
    ),
    (
        "nvidia-cublas",
        "13.10.0.20",
        [
            "dcc6d63884c53d07e267ce7e6feac17b2538cebaafec5db865736c3e28e4dc84",
            "c5f3418c0a845232a8cabc58f6fa52cfae7d8bd3680d94c3907aca710fd48d70",
        ],
    ),
];

/// Returns the lines of the requirements file.
pub(super) fn requirements() -> Vec<String> {
    WHEELS.iter().map(|(package, version, hashes)| pin(package, version, hashes)).collect()
}
