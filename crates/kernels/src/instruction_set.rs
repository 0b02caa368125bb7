//! Instruction sets that there are kernels for.

use crate::format::Format;

/// Instruction set of a kernel. All of them give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstructionSet {
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, DQ, VL and VNNI, and the instructions of [`InstructionSet::Avx2`].
    Avx512Vnni,
}

impl InstructionSet {
    /// All instruction sets, for tests and tables.
    pub const ALL: [Self; 2] = [Self::Avx2, Self::Avx512Vnni];

    /// True if this CPU, and its operating system, can run the kernels.
    pub fn is_available(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c");
            let avx512 = || {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vnni")
            };
            match self {
                Self::Avx2 => avx2,
                Self::Avx512Vnni => avx2 && avx512(),
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        false
    }

    /// True if activations are rounded to 8 bits but stored in 16, because AVX2's product of bytes (`vpmaddubsw`) adds
    /// pairs in 16 bits, which two products of signed 8-bit values can exceed.
    pub const fn is_wide(self, format: Format) -> bool {
        matches!(self, Self::Avx2) && format.has_signed_bytes()
    }

    /// Returns the number that is subtracted from each code as the kernels see it. Their codes are unsigned bytes where
    /// activations are bytes.
    pub const fn offset(self, format: Format) -> i32 {
        match format {
            // The values -12 to 12 become 0 to 24.
            Format::Mxfp4 => 12,
            _ if format.has_signed_bytes() && !self.is_wide(format) => 128,
            _ => format.offset(),
        }
    }
}
