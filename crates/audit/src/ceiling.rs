//! Instructions that a program may use without checking the CPU first.

use std::collections::BTreeSet;

use crate::feature::{Feature, Level};

/// Level of the x86-64 psABI, and instruction sets beyond that level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ceiling {
    level: Level,
    beyond: BTreeSet<String>,
}

/// Instruction sets, each with the sets that it implies: every CPU with the first also has the others. The list
/// follows clang (X86.td, `FeatureSSE42` and so on), where a flag for an instruction set also enables the implied
/// sets. It adds `popcnt`, which came with SSE4.2.
const IMPLIED: [(&str, &[&str]); 7] = [
    ("sse4_2", &["sse3", "ssse3", "sse4_1", "popcnt"]),
    ("avx", &["sse3", "ssse3", "sse4_1", "sse4_2"]),
    ("f16c", &["avx"]),
    ("fma", &["avx"]),
    ("avx2", &["avx"]),
    ("avx512f", &["avx2", "f16c", "fma"]),
    ("avx512_bf16", &["avx512bw"]),
];

impl Ceiling {
    /// Creates a limit that allows everything in `level`.
    pub fn level(level: Level) -> Self {
        Self { level, beyond: BTreeSet::new() }
    }

    /// Creates a limit that allows the instructions of every x86-64 CPU, the instruction sets `features`, and all sets
    /// that `features` imply.
    pub fn features<'a>(features: impl IntoIterator<Item = &'a str>) -> Self {
        let mut beyond = BTreeSet::new();
        let mut waiting: Vec<&str> = features.into_iter().collect();
        while let Some(name) = waiting.pop() {
            let implied = IMPLIED.iter().find(|(of, _)| *of == name);
            if beyond.insert(name.to_string()) {
                waiting.extend(implied.into_iter().flat_map(|(_, names)| *names));
            }
        }
        Self { level: Level::V1, beyond }
    }

    /// True if `feature` is allowed.
    pub fn allows(&self, feature: Feature) -> bool {
        feature.level() <= self.level || self.beyond.contains(&feature.name())
    }
}

#[cfg(test)]
mod tests {
    use iced_x86::CpuidFeature as F;

    use super::*;

    #[test]
    fn what_a_set_implies_lies_below_it_and_nothing_else() {
        let haswell = Ceiling::features(["avx2", "bmi2"]);
        for (feature, allowed) in [
            (F::SSE2, true),
            (F::SSSE3, true),
            (F::AVX, true),
            (F::AVX2, true),
            (F::BMI2, true),
            (F::BMI1, false),
            (F::FMA, false),
            (F::AVX512F, false),
        ] {
            assert_eq!(haswell.allows(Feature(feature)), allowed, "{feature:?}");
        }
        assert!(Ceiling::level(Level::V3).allows(Feature(F::LZCNT)));
        assert!(!Ceiling::level(Level::V3).allows(Feature(F::RDRAND)));
    }
}
