//! aarch64's instruction sets, spelled as Linux does in `/proc/cpuinfo`: what builds for it need.

/// `armv8.2-a+dotprod` as the guard names it: what compilers emit by themselves of ARMv8.1 and 8.2, and the dot product.
/// Neoverse N1 and Cortex-A76 (2018) have it, and all of their makers' later ones.
pub const PORTABLE: [&str; 4] = ["crc32", "atomics", "asimdrdm", "asimddp"];

/// What a native build may have been compiled to use, beyond ARMv8.0. Only what compilers emit by themselves or ggml has
/// kernels for.
pub const NATIVE: [&str; 21] = [
    "aes", "pmull", "sha1", "sha2", "crc32", "atomics", "fphp", "asimdhp", "asimdrdm", "jscvt", "fcma",
    "lrcpc", "ilrcpc", "asimddp", "asimdfhm", "sve", "sve2", "svei8mm", "svebf16", "i8mm", "bf16",
];

/// The flag that aims clang or gcc at [`PORTABLE`], or zig, which takes features behind a CPU's name and a hyphen for the
/// end of that.
pub fn portable(zig: bool) -> &'static str {
    if zig { "generic+v8_2a+dotprod" } else { "armv8.2-a+dotprod" }
}
