//! Anneal's own kernels (crate `kernels`): chooses them for this CPU and gives them to llama.cpp's CPU backend.

use std::sync::OnceLock;

use serde::Serialize;

use crate::error::{Error, Result};

/// Environment variable with the name of the kernels: `auto`, `ggml`, or an instruction set.
const VARIABLE: &str = "ANNEAL_KERNELS";

static CHOICE: OnceLock<Choice> = OnceLock::new();

/// Kernels for matrix products of quantised weights, and the reason for the choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Choice {
    /// Instruction set of Anneal's kernels, or `ggml` for the kernels of llama.cpp.
    pub name: &'static str,
    /// Reason for the choice.
    pub because: &'static str,
}

/// Name of llama.cpp's kernels.
const GGML: &str = "ggml";

/// Returns the kernels in use; nothing before the first model is loaded.
pub fn choice() -> Option<Choice> {
    CHOICE.get().copied()
}

/// Chooses kernels and gives them to the CPU backend. Only the first call has an effect. The CPU backend must be loaded.
///
/// # Errors
/// [`Error::Usage`] if `ANNEAL_KERNELS` names kernels that do not exist or that this CPU cannot run.
pub(crate) fn set() -> Result<()> {
    if CHOICE.get().is_none() {
        let wanted = std::env::var(VARIABLE).unwrap_or_default();
        let choice = choose(&wanted, available())?;
        CHOICE.get_or_init(|| give(choice));
    }
    Ok(())
}

/// Kernels that this CPU can run, and whether they are the default.
#[derive(Clone, Copy)]
struct Available {
    avx2: bool,
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

fn choose(wanted: &str, available: Available) -> Result<Choice> {
    let choice = |name, because| Ok(Choice { name, because });
    match wanted {
        "" | "auto" if available.vnni => {
            choice(GGML, "this CPU has VNNI, for which Anneal has no kernels yet")
        }
        "" | "auto" if available.avx2 => {
            choice("avx2", "the fastest kernels for a CPU with AVX2 and without VNNI")
        }
        "" | "auto" => choice(GGML, "this CPU lacks AVX2, which Anneal's kernels need"),
        "ggml" => choice(GGML, "ANNEAL_KERNELS"),
        "avx2" if available.avx2 => choice("avx2", "ANNEAL_KERNELS"),
        "avx2" => Err(Error::Usage(format!(
            "{VARIABLE}=avx2: this CPU lacks AVX2, FMA or F16C\nhint: unset {VARIABLE}, or set it to ggml"
        ))),
        _ => Err(Error::Usage(format!(
            "{VARIABLE}={wanted}: unknown kernels\nhint: the values are auto, ggml and avx2"
        ))),
    }
}

/// Gives the chosen kernels to the CPU backend, and returns the choice that is in effect.
fn give(choice: Choice) -> Choice {
    #[cfg(target_arch = "x86_64")]
    if choice.name != GGML
        && let Some(table) = kernels::ffi::table()
    {
        // SAFETY: the table is static, and laid out as the patch expects, which checks its version.
        let taken = unsafe { llama_sys::anneal_set_outside_kernels(std::ptr::from_ref(table).cast()) };
        if !taken {
            return Choice { name: GGML, because: "llama.cpp was built without the patch 0012" };
        }
    }
    choice
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_and_the_variable_choose_the_kernels() {
        let (both, avx2, none) = (
            Available { avx2: true, vnni: true },
            Available { avx2: true, vnni: false },
            Available { avx2: false, vnni: false },
        );
        let name = |wanted, available| {
            choose(wanted, available).map(|choice| choice.name).map_err(|e| e.to_string())
        };
        assert_eq!(name("", avx2).as_deref(), Ok("avx2"));
        assert_eq!(name("auto", both).as_deref(), Ok("ggml"));
        assert_eq!(name("", none).as_deref(), Ok("ggml"));
        assert_eq!(name("avx2", both).as_deref(), Ok("avx2"));
        assert_eq!(name("ggml", avx2).as_deref(), Ok("ggml"));
        assert!(name("avx2", none).unwrap_err().contains("this CPU lacks AVX2"));
        assert!(name("amx", avx2).unwrap_err().contains("ANNEAL_KERNELS=amx: unknown kernels\nhint: "));
    }
}
