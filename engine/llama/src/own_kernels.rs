//! Anneal's own kernels (crate `kernels`): chooses them for this CPU and gives them to llama.cpp's CPU backend.

use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

use kernels::instruction_set::{InstructionSet, has_feature};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::kernels::WantedBy;

/// Environment variable with the name of the kernels.
pub const VARIABLE: &str = "ANNEAL_KERNELS";

/// Hint with the values of [`MatrixKernels`].
const NAMES: &str = "use auto, ggml, avx2, avxvnni, avx512vnni or amx";

static CHOICE: OnceLock<Choice> = OnceLock::new();

/// Kernels for products and attention, as a user names them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MatrixKernels {
    /// The fastest kernels for this CPU.
    #[default]
    Auto,
    /// Kernels of llama.cpp.
    Ggml,
    /// Anneal's kernels for AVX2.
    Avx2,
    /// Anneal's kernels for AVX-VNNI.
    AvxVnni,
    /// Anneal's kernels for AVX-512 with VNNI.
    Avx512Vnni,
    /// Anneal's kernels for AMX.
    Amx,
}

impl MatrixKernels {
    /// All values, in the order in which messages list them.
    const ALL: [Self; 6] = [Self::Auto, Self::Ggml, Self::Avx2, Self::AvxVnni, Self::Avx512Vnni, Self::Amx];

    /// Returns Anneal's kernels for an instruction set.
    fn of(set: InstructionSet) -> Self {
        match set {
            InstructionSet::Avx2 => MatrixKernels::Avx2,
            InstructionSet::AvxVnni => MatrixKernels::AvxVnni,
            InstructionSet::Avx512Vnni => MatrixKernels::Avx512Vnni,
            InstructionSet::Amx => MatrixKernels::Amx,
        }
    }

    /// Returns the instruction set of Anneal's kernels.
    fn instruction_set(self) -> Option<InstructionSet> {
        match self {
            MatrixKernels::Avx2 => Some(InstructionSet::Avx2),
            MatrixKernels::AvxVnni => Some(InstructionSet::AvxVnni),
            MatrixKernels::Avx512Vnni => Some(InstructionSet::Avx512Vnni),
            MatrixKernels::Amx => Some(InstructionSet::Amx),
            MatrixKernels::Auto | MatrixKernels::Ggml => None,
        }
    }

    /// Returns the name.
    pub fn name(self) -> &'static str {
        match self {
            MatrixKernels::Auto => "auto",
            MatrixKernels::Ggml => "ggml",
            MatrixKernels::Avx2 => "avx2",
            MatrixKernels::AvxVnni => "avxvnni",
            MatrixKernels::Avx512Vnni => "avx512vnni",
            MatrixKernels::Amx => "amx",
        }
    }
}

impl fmt::Display for MatrixKernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for MatrixKernels {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        MatrixKernels::ALL
            .into_iter()
            .find(|kernels| kernels.name() == text)
            .ok_or_else(|| format!("unknown kernels {text:?}\nhint: {NAMES}"))
    }
}

/// Kernels in use, and the reason for the choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Choice {
    /// Kernels in use; never [`MatrixKernels::Auto`].
    #[serde(rename = "name")]
    pub kernels: MatrixKernels,
    /// Reason for the choice.
    pub because: &'static str,
}

impl Choice {
    /// True if Anneal's own kernels are in use.
    pub fn is_own(&self) -> bool {
        self.kernels != MatrixKernels::Ggml
    }
}

/// Returns the kernels in use; `None` before the kernels are chosen.
pub fn choice() -> Option<Choice> {
    CHOICE.get().copied()
}

/// Returns other kernels that this CPU can run and that are not in use; `None` if no such kernels exist.
pub fn alternative() -> Option<MatrixKernels> {
    match choice()?.is_own() {
        true => Some(MatrixKernels::Ggml),
        false => InstructionSet::best(has_feature).map(MatrixKernels::of),
    }
}

/// True if a token's logits have the same bits whether the token is evaluated alone or in any batch. This is the case
/// if Anneal's own kernels have computed every operation of this process that could depend on the batch. The result
/// can change to false when the process evaluates a model with weights, layers, caches or adapters that Anneal's kernels
/// do not support. The result also changes when a sequence gets a cell before one of its earlier cells, because attention
/// adds in the order of the cells.
pub fn are_batch_invariant() -> bool {
    // SAFETY: reads a flag of the CPU backend, which is loaded once kernels are chosen.
    choice().is_some_and(|choice| choice.is_own()) && unsafe { !llama_sys::anneal_has_other_operations() }
}

/// Chooses kernels. Without `wanted`, the environment decides.
///
/// # Errors
/// [`Error::Usage`] if the environment requests kernels that do not exist, or if this CPU cannot run the kernels.
pub(crate) fn decide(wanted: Option<(MatrixKernels, WantedBy)>) -> Result<Choice> {
    let wanted = match (wanted, std::env::var(VARIABLE)) {
        (Some(wanted), _) => wanted,
        (None, Ok(name)) if !name.is_empty() => (parse(&name)?, WantedBy::Environment),
        _ => (MatrixKernels::default(), WantedBy::Environment),
    };
    choose(wanted, has_feature)
}

/// Gives the chosen kernels to the CPU backend, which must be loaded. Only the first call has an effect.
pub(crate) fn apply(choice: Choice) {
    CHOICE.get_or_init(|| give(choice));
}

/// Returns the kernels that the value `name` of the environment variable requests.
///
/// # Errors
/// [`Error::Usage`] if no kernels have this name.
pub fn parse(name: &str) -> Result<MatrixKernels> {
    name.parse().map_err(|_| Error::Usage(format!("{VARIABLE}={name}: unknown kernels\nhint: {NAMES}")))
}

/// Chooses kernels for a CPU. `has` is true for the features of the CPU.
fn choose((wanted, by): (MatrixKernels, WantedBy), has: impl Fn(&str) -> bool) -> Result<Choice> {
    let because = match by {
        WantedBy::Flag => "--kernels",
        WantedBy::Environment => VARIABLE,
        WantedBy::TuningRecord => "the tuning record",
    };
    let Some(set) = wanted.instruction_set() else {
        return Ok(match wanted {
            MatrixKernels::Ggml => Choice { kernels: wanted, because },
            _ => best(has),
        });
    };
    let lacking = match set {
        InstructionSet::Avx2 => "this CPU lacks AVX2, FMA or F16C",
        InstructionSet::AvxVnni => "this CPU lacks AVX2, FMA, F16C or AVX-VNNI",
        InstructionSet::Avx512Vnni => "this CPU lacks AVX-512 F, BW, DQ, VL or VNNI",
        InstructionSet::Amx => "this CPU lacks AMX or AVX-512 VNNI, or the system does not permit AMX",
    };
    match by {
        _ if set.is_for(&has) => Ok(Choice { kernels: wanted, because }),
        WantedBy::Flag => {
            Err(Error::Usage(format!("--kernels {wanted}: {lacking}\nhint: use --kernels auto or ggml")))
        }
        WantedBy::Environment => Err(Error::Usage(format!(
            "{VARIABLE}={wanted}: {lacking}\nhint: unset {VARIABLE}, or set it to ggml"
        ))),
        // A tuning record from another machine is no reason to fail.
        WantedBy::TuningRecord => Ok(best(has)),
    }
}

/// Returns the fastest kernels, according to earlier measurements.
fn best(has: impl Fn(&str) -> bool) -> Choice {
    match InstructionSet::default_for(has) {
        Err(because) => Choice { kernels: MatrixKernels::Ggml, because },
        Ok(set) => Choice {
            kernels: MatrixKernels::of(set),
            because: match set {
                InstructionSet::Amx => "the fastest kernels for a CPU with AMX",
                InstructionSet::Avx512Vnni => "the fastest kernels for a CPU with AVX-512 and VNNI",
                InstructionSet::AvxVnni => "the fastest kernels for a CPU with AVX-VNNI and without AVX-512",
                InstructionSet::Avx2 => "the fastest kernels for a CPU with AVX2 and without VNNI",
            },
        },
    }
}

/// Gives the chosen kernels to the CPU backend, and returns the choice that is in effect.
fn give(choice: Choice) -> Choice {
    #[cfg(target_arch = "x86_64")]
    if let Some(set) = choice.kernels.instruction_set()
        && let Some(table) = kernels::ffi::table(set)
    {
        // SAFETY: the table is static and has the layout that the patch expects. The patch checks the table's
        // version.
        let taken = unsafe { llama_sys::anneal_set_outside_kernels(std::ptr::from_ref(table).cast()) };
        if !taken {
            return Choice {
                kernels: MatrixKernels::Ggml,
                because: "llama.cpp was built without patch 0012",
            };
        }
    }
    choice
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_and_the_user_choose_the_kernels() {
        type Cpu = &'static [&'static str];
        let (avx2, avx512) = (InstructionSet::Avx2.features(), InstructionSet::Avx512Vnni.features());
        let (none, vnni): (Cpu, Cpu) = (&["avx"], &["avx2", "fma", "f16c", "avx_vnni"]);
        let choose = |wanted: &str, by, cpu: Cpu| {
            let wanted = wanted.parse().map_err(|why: String| why)?;
            choose((wanted, by), |name| cpu.contains(&name))
                .map(|choice| (choice.kernels.name(), choice.because))
                .map_err(|error| error.to_string())
        };
        let name = |wanted, cpu| choose(wanted, WantedBy::Environment, cpu).map(|choice| choice.0);
        assert_eq!(name("auto", avx2).as_deref(), Ok("avx2"));
        assert_eq!(name("auto", avx512).as_deref(), Ok("avx512vnni"));
        assert_eq!(name("auto", InstructionSet::Amx.features()).as_deref(), Ok("amx"));
        assert_eq!(name("auto", vnni).as_deref(), Ok("avxvnni"));
        assert_eq!(name("auto", none).as_deref(), Ok("ggml"));
        assert_eq!(name("avx2", avx512).as_deref(), Ok("avx2"));
        assert_eq!(name("avx2", vnni).as_deref(), Ok("avx2"));
        assert_eq!(name("ggml", avx2).as_deref(), Ok("ggml"));
        let lacking = "ANNEAL_KERNELS=avx2: this CPU lacks AVX2, FMA or F16C\nhint: unset ANNEAL_KERNELS";
        assert!(name("avx2", none).unwrap_err().starts_with(lacking));
        let lacking = "ANNEAL_KERNELS=avxvnni: this CPU lacks AVX2, FMA, F16C or AVX-VNNI\nhint: ";
        assert!(name("avxvnni", avx2).unwrap_err().starts_with(lacking));
        let lacking = "ANNEAL_KERNELS=avx512vnni: this CPU lacks AVX-512 F, BW, DQ, VL or VNNI\nhint: ";
        assert!(name("avx512vnni", avx2).unwrap_err().starts_with(lacking));
        assert!(choose("avx2", WantedBy::Flag, none).unwrap_err().contains("--kernels avx2"));
        let recorded = choose("avx2", WantedBy::TuningRecord, none).expect("the default");
        assert_eq!(recorded, ("ggml", "this CPU lacks AVX2, FMA or F16C, which Anneal's kernels need"));
        let lacking = "ANNEAL_KERNELS=amx: this CPU lacks AMX or AVX-512 VNNI, or the system does not permit AMX\nhint: ";
        assert!(name("amx", avx512).unwrap_err().starts_with(lacking));
        let unknown = "unknown kernels \"sse\"\nhint: use auto, ggml, avx2, avxvnni, avx512vnni or amx";
        assert_eq!(name("sse", avx2).unwrap_err(), unknown);
    }
}
