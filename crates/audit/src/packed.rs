//! Vector registers and packed arithmetic, which distinguish a vectorised kernel from a scalar one.

use std::fmt;
use std::sync::LazyLock;

use iced_x86::{Instruction, Mnemonic, OpKind};
use serde::{Deserialize, Serialize};

/// Width of vector registers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Width {
    /// No vector registers.
    #[default]
    None,
    /// 128 bits.
    Xmm,
    /// 256 bits.
    Ymm,
    /// 512 bits.
    Zmm,
    /// Tile of AMX.
    Tmm,
}

impl fmt::Display for Width {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Width::None => "none",
            Width::Xmm => "xmm",
            Width::Ymm => "ymm",
            Width::Zmm => "zmm",
            Width::Tmm => "tmm",
        })
    }
}

impl Width {
    /// Returns the width of the widest vector register among the operands.
    pub fn of(instruction: &Instruction) -> Self {
        (0..instruction.op_count())
            .filter(|&operand| instruction.op_kind(operand) == OpKind::Register)
            .map(|operand| match instruction.op_register(operand) {
                register if register.is_xmm() => Width::Xmm,
                register if register.is_ymm() => Width::Ymm,
                register if register.is_zmm() => Width::Zmm,
                register if register.is_tmm() => Width::Tmm,
                _ => Width::None,
            })
            .max()
            .unwrap_or_default()
    }
}

/// True if the instruction computes several elements. Moves, shuffles and bitwise logic do not count, because compilers
/// also use them in scalar code, to copy structures and to clear registers.
pub fn is_arithmetic(mnemonic: Mnemonic) -> bool {
    static TABLE: LazyLock<Vec<bool>> =
        LazyLock::new(|| Mnemonic::values().map(|mnemonic| by_name(&format!("{mnemonic:?}"))).collect());
    TABLE.get(mnemonic as usize).copied().unwrap_or_default()
}

fn by_name(name: &str) -> bool {
    let name = name.to_lowercase();
    // AMX tile instructions: tdpbssd, tdpbf16ps, ….
    if name.starts_with("tdp") {
        return true;
    }
    let name = name.strip_prefix('v').unwrap_or(&name);
    let starts = |stems: &[&str]| stems.iter().any(|stem| name.starts_with(stem));
    let float = ["ps", "pd", "ph", "bf16"].iter().any(|suffix| name.ends_with(suffix))
        && starts(&[
            "add", "sub", "mul", "div", "min", "max", "sqrt", "fmadd", "fmsub", "fnmadd", "fnmsub", "hadd",
            "hsub", "rcp", "rsqrt", "dp", "scalef", "rndscale", "round", "range", "reduce", "getexp",
            "getmant", "cvt",
        ]);
    // Conversions to integers, and from single to half precision: vcvtps2dq, vcvttps2dq, vcvtneps2bf16.
    let convert = name.starts_with("cvt")
        && ["ps2", "pd2", "ph2"].iter().any(|source| name.contains(source))
        && !["cvtps2pi", "cvttps2pi"].contains(&name);
    let integer = starts(&[
        "padd", "psub", "pmul", "pmadd", "pmin", "pmax", "pavg", "pabs", "psad", "pdp", "phadd", "phsub", "psign",
        "psll", "psrl", "psra", "pshld", "pshrd", "popcnt", "plzcnt", "pcmpeq", "pcmpgt",
    ]) && name != "popcnt"
        // These instructions shift whole registers, not elements.
        && !["pslldq", "psrldq"].contains(&name);
    float || convert || integer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_arithmetic_is_told_from_scalar_and_from_moves() {
        let cases: [(&[Mnemonic], bool); 2] = [
            (
                &[
                    Mnemonic::Vfmadd231ps,
                    Mnemonic::Addps,
                    Mnemonic::Vpdpbusd,
                    Mnemonic::Vdpbf16ps,
                    Mnemonic::Vpmaddubsw,
                    Mnemonic::Vcvtph2ps,
                    Mnemonic::Vcvtps2ph,
                    Mnemonic::Vcvtneps2bf16,
                    Mnemonic::Vpslld,
                    Mnemonic::Vpopcntd,
                    Mnemonic::Tdpbssd,
                ],
                true,
            ),
            (
                &[
                    Mnemonic::Vfmadd231ss,
                    Mnemonic::Addsd,
                    Mnemonic::Vmovups,
                    Mnemonic::Vpxor,
                    Mnemonic::Vpshufb,
                    Mnemonic::Popcnt,
                    Mnemonic::Add,
                    Mnemonic::Cvtsi2ss,
                    Mnemonic::Vcvtss2sd,
                    Mnemonic::Psrldq,
                    Mnemonic::Vzeroupper,
                    Mnemonic::Tileloadd,
                    Mnemonic::Verr,
                ],
                false,
            ),
        ];
        for (mnemonics, packed) in cases {
            for mnemonic in mnemonics {
                assert_eq!(is_arithmetic(*mnemonic), packed, "{mnemonic:?}");
            }
        }
    }
}
