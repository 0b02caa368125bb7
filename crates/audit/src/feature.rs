//! Instruction sets, and their levels in the x86-64 psABI.

use std::fmt;

use iced_x86::CpuidFeature;
use serde::{Serialize, Serializer};

/// Instruction set, named as in Linux (`/proc/cpuinfo`) and in the record's `cpu_flags`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Feature(pub(crate) CpuidFeature);

/// Level of an instruction set: x86-64 psABI 1.0, table 3.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Supported by every x86-64 CPU, or ignored as a hint.
    V1,
    /// x86-64-v2: Nehalem.
    V2,
    /// x86-64-v3: Haswell.
    V3,
    /// x86-64-v4: Skylake-SP.
    V4,
    /// No level contains the instruction set.
    Beyond,
}

impl Level {
    /// Returns the number of the level; `None` for [`Beyond`](Self::Beyond).
    pub fn number(self) -> Option<u32> {
        match self {
            Level::V1 => Some(1),
            Level::V2 => Some(2),
            Level::V3 => Some(3),
            Level::V4 => Some(4),
            Level::Beyond => None,
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.number() {
            Some(1) => f.pad("x86-64"),
            Some(number) => f.pad(&format!("x86-64-v{number}")),
            None => f.pad("beyond"),
        }
    }
}

impl Feature {
    /// Returns the level of the instruction set. Instruction sets that are not in the table belong to no level, so
    /// that a new instruction set fails an audit.
    pub fn level(self) -> Level {
        use CpuidFeature as F;
        match self.0 {
            F::INTEL8086 | F::INTEL186 | F::INTEL286 | F::INTEL386 | F::INTEL486 | F::X64 => Level::V1,
            F::FPU | F::FPU287 | F::FPU387 | F::CMOV | F::CX8 | F::FXSR | F::MMX | F::SSE | F::SSE2 => {
                Level::V1
            }
            // Every x86-64 CPU has these instruction sets, although no level names them.
            F::CPUID | F::CLFSH | F::MSR | F::SYSCALL | F::SEP | F::TSC | F::RDPMC => Level::V1,
            // Older CPUs ignore these encodings: endbr64, pause, long no-operations, prefetches, bounds checks.
            F::CET_IBT | F::PAUSE | F::MULTIBYTENOP | F::PREFETCHW | F::PREFETCHWT1 | F::PREFETCHITI => {
                Level::V1
            }
            F::CLDEMOTE | F::MPX => Level::V1,
            F::CMPXCHG16B | F::POPCNT | F::SSE3 | F::SSSE3 | F::SSE4_1 | F::SSE4_2 => Level::V2,
            F::AVX | F::AVX2 | F::BMI1 | F::BMI2 | F::F16C | F::FMA | F::LZCNT | F::MOVBE => Level::V3,
            // v3 requires OSXSAVE, which implies xgetbv. Every v3 CPU has rdtscp.
            F::XSAVE | F::RDTSCP => Level::V3,
            F::AVX512F | F::AVX512BW | F::AVX512CD | F::AVX512DQ | F::AVX512VL => Level::V4,
            _ => Level::Beyond,
        }
    }

    /// Returns the name of the instruction set.
    pub fn name(self) -> String {
        use CpuidFeature as F;
        match self.0 {
            F::INTEL8086 | F::INTEL186 | F::INTEL286 | F::INTEL386 | F::INTEL486 | F::X64 => "x86_64",
            F::CMPXCHG16B => "cx16",
            F::SHA => "sha_ni",
            F::CET_IBT => "ibt",
            F::CET_SS => "shstk",
            F::AVX512_IFMA => "avx512ifma",
            F::CLFSH => "clflush",
            other => return format!("{other:?}").to_lowercase(),
        }
        .to_string()
    }
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.name())
    }
}

impl Serialize for Feature {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_have_the_names_of_the_record_and_the_levels_of_the_psabi() {
        use CpuidFeature as F;
        let cases = [
            (F::INTEL386, "x86_64", Level::V1),
            (F::CMPXCHG16B, "cx16", Level::V2),
            (F::SSE4_1, "sse4_1", Level::V2),
            (F::AVX2, "avx2", Level::V3),
            (F::LZCNT, "lzcnt", Level::V3),
            (F::AVX512VL, "avx512vl", Level::V4),
            (F::AVX512_VNNI, "avx512_vnni", Level::Beyond),
            (F::AVX512_IFMA, "avx512ifma", Level::Beyond),
            (F::AVX_VNNI, "avx_vnni", Level::Beyond),
            (F::AMX_INT8, "amx_int8", Level::Beyond),
            (F::SHA, "sha_ni", Level::Beyond),
            (F::RDRAND, "rdrand", Level::Beyond),
            (F::CET_IBT, "ibt", Level::V1),
            (F::SYSCALL, "syscall", Level::V1),
        ];
        for (feature, name, level) in cases {
            assert_eq!((Feature(feature).name().as_str(), Feature(feature).level()), (name, level));
        }
        assert_eq!(Level::V3.to_string(), "x86-64-v3");
    }
}
