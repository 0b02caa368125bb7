//! Instruction sets: their CPUID bits, the registers that the operating system must save for them, and the x86-64
//! levels that they form.
//!
//! The bits come from Intel SDM volume 2A (CPUID), Intel's Architecture Instruction Set Extensions reference, and AMD
//! APM volume 3 appendix E. The table contains the instruction sets that llama.cpp's kernels, the psABI levels and
//! `-march=native` of GCC and Clang use. The names match `/proc/cpuinfo`, with three exceptions, which follow llama.cpp
//! and the compilers: `sse3` (`pni` in `/proc/cpuinfo`), `lzcnt` (`abm`) and `avx512_vbmi` (`avx512vbmi`).

use std::collections::BTreeSet;

use crate::cpuid::Leaves;

/// Register state that the operating system must save (Intel SDM volume 1, 13.3).
#[derive(Clone, Copy, PartialEq)]
enum Needs {
    /// No state beyond the baseline of every 64-bit system.
    Nothing,
    /// XSAVE itself (CR4.OSXSAVE).
    Xsave,
    /// SSE and AVX state.
    Avx,
    /// AVX state, opmask and the upper parts of ZMM.
    Avx512,
    /// Tile configuration and data. Linux only permits a process to use tiles on request (arch_prctl).
    Amx,
}

impl Needs {
    /// Returns the bits of XCR0 that must be set.
    const fn xcr0(self) -> u64 {
        match self {
            Needs::Nothing => 0,
            Needs::Xsave => 1 << 0,
            Needs::Avx => 1 << 1 | 1 << 2,
            Needs::Avx512 => Needs::Avx.xcr0() | 1 << 5 | 1 << 6 | 1 << 7,
            Needs::Amx => 1 << 17 | 1 << 18,
        }
    }
}

#[derive(Clone, Copy)]
enum Register {
    Eax,
    Ebx,
    Ecx,
    Edx,
}

/// Bits in one register of one leaf.
struct CpuidRow {
    leaf: u32,
    subleaf: u32,
    register: Register,
    bits: &'static [(u32, &'static str, Needs)],
}

use Needs::{Amx, Avx, Avx512, Nothing, Xsave};
use Register::{Eax, Ebx, Ecx, Edx};

#[rustfmt::skip]
const ROWS: &[CpuidRow] = &[
    CpuidRow { leaf: 1, subleaf: 0, register: Edx, bits: &[
        (0, "fpu", Nothing), (8, "cx8", Nothing), (15, "cmov", Nothing), (23, "mmx", Nothing),
        (24, "fxsr", Nothing), (25, "sse", Nothing), (26, "sse2", Nothing),
    ] },
    CpuidRow { leaf: 1, subleaf: 0, register: Ecx, bits: &[
        (0, "sse3", Nothing), (1, "pclmulqdq", Nothing), (9, "ssse3", Nothing), (12, "fma", Avx),
        (13, "cx16", Nothing), (19, "sse4_1", Nothing), (20, "sse4_2", Nothing), (22, "movbe", Nothing),
        (23, "popcnt", Nothing), (25, "aes", Nothing), (26, "xsave", Xsave), (27, "osxsave", Xsave),
        (28, "avx", Avx), (29, "f16c", Avx), (30, "rdrand", Nothing),
    ] },
    CpuidRow { leaf: 7, subleaf: 0, register: Ebx, bits: &[
        (0, "fsgsbase", Nothing), (3, "bmi1", Nothing), (5, "avx2", Avx), (8, "bmi2", Nothing),
        (9, "erms", Nothing), (11, "rtm", Nothing), (16, "avx512f", Avx512), (17, "avx512dq", Avx512),
        (18, "rdseed", Nothing), (19, "adx", Nothing), (21, "avx512ifma", Avx512),
        (23, "clflushopt", Nothing), (24, "clwb", Nothing), (28, "avx512cd", Avx512),
        (29, "sha_ni", Nothing), (30, "avx512bw", Avx512), (31, "avx512vl", Avx512),
    ] },
    CpuidRow { leaf: 7, subleaf: 0, register: Ecx, bits: &[
        (1, "avx512_vbmi", Avx512), (5, "waitpkg", Nothing), (6, "avx512_vbmi2", Avx512),
        (8, "gfni", Nothing), (9, "vaes", Avx), (10, "vpclmulqdq", Avx), (11, "avx512_vnni", Avx512),
        (12, "avx512_bitalg", Avx512), (14, "avx512_vpopcntdq", Avx512), (22, "rdpid", Nothing),
        (25, "cldemote", Nothing), (27, "movdiri", Nothing), (28, "movdir64b", Nothing),
    ] },
    CpuidRow { leaf: 7, subleaf: 0, register: Edx, bits: &[
        (4, "fsrm", Nothing), (8, "avx512_vp2intersect", Avx512), (14, "serialize", Nothing),
        (15, "hybrid", Nothing), (22, "amx_bf16", Amx), (23, "avx512_fp16", Avx512),
        (24, "amx_tile", Amx), (25, "amx_int8", Amx),
    ] },
    CpuidRow { leaf: 7, subleaf: 1, register: Eax, bits: &[
        (0, "sha512", Avx), (1, "sm3", Avx), (2, "sm4", Avx), (4, "avx_vnni", Avx),
        (5, "avx512_bf16", Avx512), (7, "cmpccxadd", Nothing), (21, "amx_fp16", Amx),
        (23, "avx_ifma", Avx),
    ] },
    CpuidRow { leaf: 7, subleaf: 1, register: Edx, bits: &[
        (4, "avx_vnni_int8", Avx), (5, "avx_ne_convert", Avx), (8, "amx_complex", Amx),
        (10, "avx_vnni_int16", Avx), (14, "prefetchi", Nothing),
    ] },
    CpuidRow { leaf: 0xd, subleaf: 1, register: Eax, bits: &[
        (0, "xsaveopt", Xsave), (1, "xsavec", Xsave), (3, "xsaves", Xsave),
    ] },
    CpuidRow { leaf: 0x8000_0001, subleaf: 0, register: Ecx, bits: &[
        (0, "lahf_lm", Nothing), (5, "lzcnt", Nothing), (6, "sse4a", Nothing),
        (8, "3dnowprefetch", Nothing), (11, "xop", Avx), (15, "lwp", Nothing), (16, "fma4", Avx),
        (21, "tbm", Nothing), (29, "mwaitx", Nothing),
    ] },
    CpuidRow { leaf: 0x8000_0001, subleaf: 0, register: Edx, bits: &[
        (11, "syscall", Nothing), (29, "lm", Nothing),
    ] },
    CpuidRow { leaf: 0x8000_0008, subleaf: 0, register: Ebx, bits: &[
        (0, "clzero", Nothing), (9, "wbnoinvd", Nothing),
    ] },
];

/// Instruction sets that each level adds to the level below: x86-64 psABI, "Micro-Architecture Levels". OSFXSR is
/// left out: it is a bit of CR4, which programs cannot read, and no 64-bit program starts without it.
const LEVELS: [&[&str]; 4] = [
    &["cmov", "cx8", "fpu", "fxsr", "mmx", "syscall", "sse", "sse2"],
    &["cx16", "lahf_lm", "popcnt", "sse3", "sse4_1", "sse4_2", "ssse3"],
    &["avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "lzcnt", "movbe", "osxsave"],
    &["avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"],
];

/// Instruction sets of a CPU.
pub(crate) struct Features {
    /// Supported by the CPU, and enabled by the operating system.
    pub usable: BTreeSet<String>,
    /// Supported by the CPU, but not enabled by the operating system.
    pub disabled: BTreeSet<String>,
}

pub(crate) fn read(leaves: &Leaves) -> Features {
    let xcr0 = leaves.xcr0();
    let (mut usable, mut disabled) = (BTreeSet::new(), BTreeSet::new());
    for row in ROWS {
        let Some(result) = leaves.get(row.leaf, row.subleaf) else { continue };
        let register = match row.register {
            Eax => result.eax,
            Ebx => result.ebx,
            Ecx => result.ecx,
            Edx => result.edx,
        };
        for &(bit, name, needs) in row.bits {
            if register & 1 << bit == 0 {
                continue;
            }
            let set = if xcr0 & needs.xcr0() == needs.xcr0() { &mut usable } else { &mut disabled };
            set.insert(name.to_string());
        }
    }
    Features { usable, disabled }
}

/// Returns the highest x86-64 level for which `usable` contains all instruction sets, including those of lower
/// levels.
pub(crate) fn x86_64_level(usable: &BTreeSet<String>) -> Option<u8> {
    let reached = LEVELS.iter().take_while(|names| names.iter().all(|&name| usable.contains(name))).count();
    u8::try_from(reached).ok().filter(|&level| level > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_needs_each_of_its_features_and_all_below() {
        for level in 1..=4u8 {
            let all: BTreeSet<String> =
                LEVELS[..usize::from(level)].iter().copied().flatten().map(|name| name.to_string()).collect();
            assert_eq!(x86_64_level(&all), Some(level));
            for name in &all {
                let mut fewer = all.clone();
                fewer.remove(name);
                assert!(x86_64_level(&fewer) < Some(level), "level {level} without {name}");
            }
        }
    }

    #[test]
    fn every_name_of_a_level_can_be_found_on_a_cpu() {
        let names: BTreeSet<&str> = ROWS.iter().flat_map(|row| row.bits).map(|&(_, name, _)| name).collect();
        let bits: usize = ROWS.iter().map(|row| row.bits.len()).sum();
        assert_eq!(names.len(), bits, "a name occurs twice");
        for name in LEVELS.iter().copied().flatten() {
            assert!(names.contains(name), "{name}");
        }
    }
}
