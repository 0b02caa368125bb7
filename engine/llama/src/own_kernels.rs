//! Anneal's own kernels (crate `kernels`): chooses them for this CPU and gives them to llama.cpp's CPU backend.

use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::kernels::WantedBy;

/// Environment variable with the name of the kernels.
pub const VARIABLE: &str = "ANNEAL_KERNELS";

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
}

impl MatrixKernels {
    /// Returns the name.
    pub fn name(self) -> &'static str {
        match self {
            MatrixKernels::Auto => "auto",
            MatrixKernels::Ggml => "ggml",
            MatrixKernels::Avx2 => "avx2",
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
        [MatrixKernels::Auto, MatrixKernels::Ggml, MatrixKernels::Avx2]
            .into_iter()
            .find(|kernels| kernels.name() == text)
            .ok_or_else(|| format!("unknown kernels {text:?}: use auto, ggml or avx2"))
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

/// Returns the kernels in use; nothing before the kernels were chosen.
pub fn choice() -> Option<Choice> {
    CHOICE.get().copied()
}

/// Returns the kernels that this CPU can run and that are not in use; nothing if there are no others.
pub fn alternative() -> Option<MatrixKernels> {
    match choice()?.is_own() {
        true => Some(MatrixKernels::Ggml),
        false => available().avx2.then_some(MatrixKernels::Avx2),
    }
}

/// Chooses kernels. Without `wanted`, the environment decides.
///
/// # Errors
/// [`Error::Usage`] if the environment names kernels that do not exist, or if this CPU cannot run the kernels.
pub(crate) fn decide(wanted: Option<(MatrixKernels, WantedBy)>) -> Result<Choice> {
    let wanted = match (wanted, std::env::var(VARIABLE)) {
        (Some(wanted), _) => wanted,
        (None, Ok(name)) if !name.is_empty() => (parse(&name)?, WantedBy::Environment),
        _ => (MatrixKernels::default(), WantedBy::Environment),
    };
    choose(wanted, available())
}

/// Gives the chosen kernels to the CPU backend, which must be loaded. Only the first call has an effect.
pub(crate) fn apply(choice: Choice) {
    CHOICE.get_or_init(|| give(choice));
}

/// Returns the kernels that the environment variable names with the value `name`.
///
/// # Errors
/// [`Error::Usage`] if there are no such kernels.
pub fn parse(name: &str) -> Result<MatrixKernels> {
    name.parse().map_err(|_| {
        Error::Usage(format!("{VARIABLE}={name}: unknown kernels\nhint: the values are auto, ggml and avx2"))
    })
}

/// Kernels that this CPU can run.
#[derive(Clone, Copy)]
struct Available {
    avx2: bool,
    /// True if the CPU has VNNI, with which llama.cpp's kernels are faster than Anneal's for AVX2.
    vnni: bool,
}

fn available() -> Available {
    #[cfg(target_arch = "x86_64")]
    return Available {
        avx2: kernels::ffi::table().is_some(),
        vnni: is_x86_feature_detected!("avx512vnni") || is_x86_feature_detected!("avxvnni"),
    };
    #[cfg(not(target_arch = "x86_64"))]
    Available { avx2: false, vnni: false }
}

fn choose((wanted, by): (MatrixKernels, WantedBy), available: Available) -> Result<Choice> {
    let because = match by {
        WantedBy::Flag => "--kernels",
        WantedBy::Environment => VARIABLE,
        WantedBy::TuningRecord => "the tuning record",
    };
    let lacking = "this CPU lacks AVX2, FMA or F16C";
    match (wanted, by) {
        (MatrixKernels::Ggml, _) => Ok(Choice { kernels: MatrixKernels::Ggml, because }),
        (MatrixKernels::Avx2, _) if available.avx2 => Ok(Choice { kernels: MatrixKernels::Avx2, because }),
        (MatrixKernels::Avx2, WantedBy::Flag) => {
            Err(Error::Usage(format!("--kernels avx2: {lacking}\nhint: use --kernels auto or ggml")))
        }
        (MatrixKernels::Avx2, WantedBy::Environment) => Err(Error::Usage(format!(
            "{VARIABLE}=avx2: {lacking}\nhint: unset {VARIABLE}, or set it to ggml"
        ))),
        // A tuning record of another machine is no reason to fail.
        (MatrixKernels::Avx2, WantedBy::TuningRecord) | (MatrixKernels::Auto, _) => Ok(best(available)),
    }
}

/// Returns the fastest kernels by what was measured.
fn best(available: Available) -> Choice {
    match available {
        Available { vnni: true, .. } => Choice {
            kernels: MatrixKernels::Ggml,
            because: "this CPU has VNNI, for which Anneal has no kernels yet",
        },
        Available { avx2: true, .. } => Choice {
            kernels: MatrixKernels::Avx2,
            because: "the fastest kernels for a CPU with AVX2 and without VNNI",
        },
        _ => Choice {
            kernels: MatrixKernels::Ggml,
            because: "this CPU lacks AVX2, which Anneal's kernels need",
        },
    }
}

/// Gives the chosen kernels to the CPU backend, and returns the choice that is in effect.
fn give(choice: Choice) -> Choice {
    #[cfg(target_arch = "x86_64")]
    if choice.is_own()
        && let Some(table) = kernels::ffi::table()
    {
        // SAFETY: the table is static, and laid out as the patch expects, which checks its version.
        let taken = unsafe { llama_sys::anneal_set_outside_kernels(std::ptr::from_ref(table).cast()) };
        if !taken {
            return Choice {
                kernels: MatrixKernels::Ggml,
                because: "llama.cpp was built without the patch 0012",
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
        let (both, avx2, none) = (
            Available { avx2: true, vnni: true },
            Available { avx2: true, vnni: false },
            Available { avx2: false, vnni: false },
        );
        let choose = |wanted: &str, by, available| {
            let wanted = wanted.parse().map_err(|why: String| why)?;
            choose((wanted, by), available)
                .map(|choice| (choice.kernels.name(), choice.because))
                .map_err(|error| error.to_string())
        };
        let name =
            |wanted, available| choose(wanted, WantedBy::Environment, available).map(|choice| choice.0);
        assert_eq!(name("auto", avx2).as_deref(), Ok("avx2"));
        assert_eq!(name("auto", both).as_deref(), Ok("ggml"));
        assert_eq!(name("auto", none).as_deref(), Ok("ggml"));
        assert_eq!(name("avx2", both).as_deref(), Ok("avx2"));
        assert_eq!(name("ggml", avx2).as_deref(), Ok("ggml"));
        let lacking = "ANNEAL_KERNELS=avx2: this CPU lacks AVX2, FMA or F16C\nhint: unset ANNEAL_KERNELS";
        assert!(name("avx2", none).unwrap_err().starts_with(lacking));
        assert!(choose("avx2", WantedBy::Flag, none).unwrap_err().contains("--kernels avx2"));
        let recorded = choose("avx2", WantedBy::TuningRecord, none).expect("the default");
        assert_eq!(recorded, ("ggml", "this CPU lacks AVX2, which Anneal's kernels need"));
        assert_eq!(name("amx", avx2).unwrap_err(), "unknown kernels \"amx\": use auto, ggml or avx2");
    }
}
