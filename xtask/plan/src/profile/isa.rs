//! Profile key `isa`: one of Anneal's own values, or the compiler's name of a CPU.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Instruction sets that the compilers may use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum Isa {
    /// All instruction sets of the build host.
    Native,
    /// psABI level of CPUs with SSE4.2 (Nehalem, 2008), for tests with kernels for older CPUs.
    X86_64V2,
    /// psABI level of CPUs since Haswell. Other architectures use the corresponding level.
    X86_64V3,
    /// aarch64 level that corresponds to x86-64-v3.
    Aarch64Dotprod,
    /// Baseline for the program, with a kernel library for each kind of CPU. The program loads one of them.
    AllVariants,
    /// Only the psABI's baseline, without kernels for any instruction set.
    Scalar,
    /// llama.cpp's own choice.
    Upstream,
    /// All instruction sets of the CPU with this `-march` name. Only the compiler knows the valid names.
    Cpu(String),
}

/// Values of `isa` that are not names of CPUs.
const WORDS: [(&str, Isa); 7] = [
    ("native", Isa::Native),
    ("x86-64-v2", Isa::X86_64V2),
    ("x86-64-v3", Isa::X86_64V3),
    ("armv8.2-a+dotprod", Isa::Aarch64Dotprod),
    ("all-variants", Isa::AllVariants),
    ("scalar", Isa::Scalar),
    ("upstream", Isa::Upstream),
];

impl Isa {
    /// Returns the values that are not names of CPUs.
    pub fn words() -> impl Iterator<Item = &'static str> {
        WORDS.iter().map(|(word, _)| *word)
    }
}

impl From<String> for Isa {
    fn from(text: String) -> Self {
        let known = WORDS.iter().find(|(word, _)| *word == text);
        known.map_or(Isa::Cpu(text), |(_, isa)| isa.clone())
    }
}

impl From<Isa> for String {
    fn from(isa: Isa) -> Self {
        isa.to_string()
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = WORDS.iter().find(|(_, isa)| isa == self).map(|(word, _)| *word);
        f.pad(match self {
            Isa::Cpu(name) => name,
            _ => word.unwrap_or_default(),
        })
    }
}
