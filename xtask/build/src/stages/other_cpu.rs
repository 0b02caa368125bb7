//! Programs for a CPU with instruction sets that this machine's CPU lacks. The program's own CPU guard decides whether
//! the emulated CPU can run the program, because no list shows the instruction sets that an emulator supports.

use anyhow::{Context, Result, bail};
use base::exit;

use super::state::Build;
use crate::process;

/// Message of qemu about a CPU that it does not know.
const NO_MODEL: &str = "unable to find CPU model";

/// Returns the reason why neither this machine's CPU nor an emulator can run the newest engine, or `None`.
///
/// # Errors
/// If the emulator cannot be started, or the program fails for a reason other than the CPU.
pub fn not_run(build: &Build) -> Result<Option<String>> {
    let Some(other) = &build.plan.isa.other_cpu else { return Ok(None) };
    let shortfall = other.shortfall();
    let Some(emulator) = &other.emulator else {
        return Ok(Some(format!("{shortfall}, and qemu-x86_64 is not installed")));
    };
    let anneal = build.folder.engine()?;
    let mut command = build.executable(&anneal).command();
    command.arg("--version");
    let output = command.output().with_context(|| format!("cannot run {}", emulator.tool.path.display()))?;
    if output.status.success() {
        return Ok(None);
    }
    let told = String::from_utf8_lossy(&output.stderr);
    match why(&told, output.status.code()) {
        Some(why) => Ok(Some(format!(
            "{shortfall}, and the CPU {} of qemu {} {why}",
            emulator.cpu, emulator.tool.version
        ))),
        None => bail!("`{}` failed with {}:\n{told}", process::line(&command), output.status),
    }
}

/// Returns the clause about the emulated CPU, from the message of the program's guard or of qemu.
fn why(told: &str, code: Option<i32>) -> Option<String> {
    let missing = || told.lines().find_map(|line| line.trim_start().strip_prefix("missing:"));
    match code {
        Some(code) if code == i32::from(exit::UNAVAILABLE) => Some(format!("lacks {}", missing()?.trim())),
        _ if told.contains(NO_MODEL) => Some("does not exist".to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_guard_and_a_missing_model_explain_that_a_program_was_not_run() {
        let guard = "qemu-x86_64: warning: TCG doesn't support requested feature\nanneal: this build does not run on \
                     this CPU\n  CPU:      AMD EPYC\n  missing:  avx512f avx512bw\n  use:      another\n";
        let cases = [
            (guard, Some(69), Some("lacks avx512f avx512bw")),
            ("qemu-x86_64: unable to find CPU model 'EPYC-Turin'", Some(1), Some("does not exist")),
            (guard, Some(1), None),
            ("qemu: uncaught target signal 4 (Illegal instruction)", None, None),
        ];
        for (told, code, expected) in cases {
            assert_eq!(why(told, code).as_deref(), expected, "{told}");
        }
    }
}
