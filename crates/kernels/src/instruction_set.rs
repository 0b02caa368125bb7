//! Instruction sets that have kernels.

use crate::format::Format;

/// Instruction set of a kernel. All instruction sets give bit-identical results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstructionSet {
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX-VNNI, and the instructions of [`InstructionSet::Avx2`].
    AvxVnni,
    /// AVX-512 F, BW, DQ, VL and VNNI, and the instructions of [`InstructionSet::Avx2`].
    Avx512Vnni,
    /// AMX for 8-bit integers, and the instructions of [`InstructionSet::Avx512Vnni`].
    Amx,
}

/// CPU features of AMX's kernels: first the three that AVX2's kernels use, then the five that AVX-512 VNNI's kernels
/// use in addition.
const SERVER: [&str; 10] = [
    "avx2",
    "fma",
    "f16c",
    "avx512f",
    "avx512bw",
    "avx512dq",
    "avx512vl",
    "avx512_vnni",
    "amx_tile",
    "amx_int8",
];

impl InstructionSet {
    /// All instruction sets, for tests and tables.
    pub const ALL: [Self; 4] = [Self::Avx2, Self::AvxVnni, Self::Avx512Vnni, Self::Amx];

    /// Returns the CPU features that the kernels use, by their names in `build_info.json`.
    pub const fn features(self) -> &'static [&'static str] {
        match self {
            Self::Avx2 => SERVER.split_at(3).0,
            Self::AvxVnni => &["avx2", "fma", "f16c", "avx_vnni"],
            Self::Avx512Vnni => SERVER.split_at(8).0,
            Self::Amx => &SERVER,
        }
    }

    /// True if this CPU and its operating system can run the kernels.
    pub fn is_available(self) -> bool {
        self.is_for(has_feature)
    }

    /// True if a CPU can run the kernels. `has` returns true for the CPU's features.
    pub fn is_for(self, has: impl Fn(&str) -> bool) -> bool {
        self.features().iter().all(|feature| has(feature))
    }

    /// Returns the fastest of the instruction sets that a CPU has. `has` returns true for the CPU's features.
    pub fn best(has: impl Fn(&str) -> bool) -> Option<Self> {
        [Self::Amx, Self::Avx512Vnni, Self::AvxVnni, Self::Avx2].into_iter().find(|set| set.is_for(&has))
    }

    /// Returns the instruction set whose kernels are the default on a CPU. `has` returns true for the CPU's
    /// features.
    ///
    /// # Errors
    /// If llama.cpp's kernels are the default; the message gives the reason.
    pub fn default_for(has: impl Fn(&str) -> bool) -> Result<Self, &'static str> {
        Self::best(has).ok_or("this CPU lacks AVX2, FMA or F16C, which Anneal's kernels need")
    }

    /// True if activations are rounded to 8 bits but stored in 16. AVX2's byte product (`vpmaddubsw`) adds pairs in 16
    /// bits, which two products of signed 8-bit values can overflow.
    pub const fn is_wide(self, format: Format) -> bool {
        matches!(self, Self::Avx2) && format.has_signed_bytes()
    }

    /// Returns the number that the kernels subtract from each code. If activations are bytes, the kernels' codes are
    /// unsigned bytes.
    pub const fn offset(self, format: Format) -> i32 {
        match format {
            // The values -12 to 12 become 0 to 24.
            Format::Mxfp4 => 12,
            _ if format.has_signed_bytes() && !self.is_wide(format) => 128,
            _ => format.offset(),
        }
    }
}

/// True if this CPU has a feature of [`InstructionSet::features`] or `amx_bf16`, and its operating system supports it.
/// If the CPU has AMX, `amx_tile` asks the system to permit the use of tiles in this process.
pub fn has_feature(name: &str) -> bool {
    #[cfg(target_arch = "x86_64")]
    return match name {
        "avx2" => is_x86_feature_detected!("avx2"),
        "fma" => is_x86_feature_detected!("fma"),
        "f16c" => is_x86_feature_detected!("f16c"),
        "avx512f" => is_x86_feature_detected!("avx512f"),
        "avx512bw" => is_x86_feature_detected!("avx512bw"),
        "avx512dq" => is_x86_feature_detected!("avx512dq"),
        "avx512vl" => is_x86_feature_detected!("avx512vl"),
        "avx512_vnni" => is_x86_feature_detected!("avx512vnni"),
        "avx_vnni" => is_x86_feature_detected!("avxvnni"),
        // CPUID leaf 7.0, EDX; the macro does not know AMX in this version of Rust.
        "amx_tile" => has_leaf_7_edx(24) && tiles_are_permitted(),
        "amx_int8" => has_leaf_7_edx(25),
        "amx_bf16" => has_leaf_7_edx(22),
        _ => false,
    };
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = name;
        false
    }
}

#[cfg(target_arch = "x86_64")]
fn has_leaf_7_edx(bit: u32) -> bool {
    // Leaf 7 exists on every CPU with AVX2.
    is_x86_feature_detected!("avx2") && std::arch::x86_64::__cpuid_count(7, 0).edx >> bit & 1 == 1
}

/// Asks the system, once, to permit the use of tile registers in this process. Without this permission, the first use
/// of a tile would end the process.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn tiles_are_permitted() -> bool {
    /// Constants `ARCH_REQ_XCOMP_PERM` and `XFEATURE_XTILEDATA` from Linux's asm/prctl.h and documentation
    /// (x86/xstate.rst).
    const REQUEST: libc::c_long = 0x1023;
    const TILE_DATA: libc::c_long = 18;
    static PERMITTED: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    // SAFETY: the call requests a permission and accesses no memory.
    *PERMITTED.get_or_init(|| unsafe { libc::syscall(libc::SYS_arch_prctl, REQUEST, TILE_DATA) } == 0)
}

#[cfg(all(target_arch = "x86_64", not(target_os = "linux")))]
fn tiles_are_permitted() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_has_the_kernels_that_were_measured_to_be_faster() {
        let avx2 = ["avx2", "fma", "f16c"];
        let avx512 = InstructionSet::Avx512Vnni.features();
        let with = |more: &'static [&'static str]| [avx512, more].concat();
        let default = |features: &[&str]| InstructionSet::default_for(|name| features.contains(&name));
        assert_eq!(default(&avx2), Ok(InstructionSet::Avx2));
        assert_eq!(default(avx512), Ok(InstructionSet::Avx512Vnni));
        assert_eq!(default(&with(&["avx_vnni"])), Ok(InstructionSet::Avx512Vnni), "Zen 5");
        let amx = with(&["avx_vnni", "amx_tile", "amx_int8"]);
        assert_eq!(default(&amx), Ok(InstructionSet::Amx), "Sapphire Rapids");
        assert_eq!(
            default(&with(&["avx_vnni", "amx_int8"])),
            Ok(InstructionSet::Avx512Vnni),
            "no permission"
        );
        assert_eq!(default(&["avx2", "fma", "f16c", "avx_vnni"]), Ok(InstructionSet::AvxVnni), "Alder Lake");
        assert!(default(&["avx2", "fma"]).is_err_and(|why| why.contains("lacks AVX2, FMA or F16C")));
    }
}
