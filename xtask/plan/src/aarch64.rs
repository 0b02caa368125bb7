//! Instruction sets of aarch64, spelled as in Linux's `/proc/cpuinfo`.

/// Features of `armv8.2-a+dotprod`, named as in the CPU guard: the ARMv8.1 and 8.2 features that compilers use
/// automatically, and the dot product. Neoverse N1, Cortex-A76 (2018) and all later CPUs of these families have them.
pub const PORTABLE: [&str; 4] = ["crc32", "atomics", "asimdrdm", "asimddp"];

/// Features beyond ARMv8.0 that a native build may use, because compilers use them automatically or because ggml has
/// kernels for them.
pub const NATIVE: [&str; 21] = [
    "aes", "pmull", "sha1", "sha2", "crc32", "atomics", "fphp", "asimdhp", "asimdrdm", "jscvt", "fcma",
    "lrcpc", "ilrcpc", "asimddp", "asimdfhm", "sve", "sve2", "svei8mm", "svebf16", "i8mm", "bf16",
];

/// Returns the flag that targets [`PORTABLE`], for clang and gcc or for zig. zig expects features after a CPU's name,
/// and treats a hyphen as the end of that name.
pub fn portable(zig: bool) -> &'static str {
    if zig { "generic+v8_2a+dotprod" } else { "armv8.2-a+dotprod" }
}
