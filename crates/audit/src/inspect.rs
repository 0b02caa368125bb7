//! Quick inspection of the CPU kernels in a program or library: only the functions that the rules name are
//! disassembled.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::error::Error;
use crate::native::{self, KernelWidth};
use crate::packed::Width;
use crate::program::Program;
use crate::rules::{Pattern, Rules};

/// Rules of this checkout, compiled in because programs that run elsewhere also need them.
const RULES: &str = include_str!("../../../profiles/audit.toml");

/// Maximum size of an inspected file, in bytes. A llamafile contains its model, so it can take gigabytes.
const LARGEST: u64 = 512 << 20;

/// Minimum number of stack moves per 100 arithmetic instructions in an inner loop for a kernel to count as unoptimised.
/// An optimised kernel of ggml has up to 60. Without optimisation, each operand passes through the stack.
const UNOPTIMISED: u32 = 150;

/// Parts of the names of all functions in the rules for kernels, to skip other names quickly.
const PARTS: [&str; 6] = ["ggml_", "quantize_row", "gem", "tiled_run", "tinyBLAS", "kernels"];

/// CPU kernels of a program or library.
#[derive(Clone, Debug, Default)]
pub struct KernelCode {
    /// Libraries that the file needs, as `DT_NEEDED` names them.
    pub libraries: BTreeSet<String>,
    /// Kernels that were found, with the width that the CPU allows.
    pub kernels: Vec<KernelWidth>,
    /// Number of instructions of each instruction set that ggml has kernels for.
    pub instruction_sets: BTreeMap<String, u64>,
    /// Number of vectorised functions.
    pub vectorised: usize,
    /// Number of vectorised functions that were compiled without optimisation.
    pub unoptimised: usize,
}

/// Inspects the kernels in the file at `path`. `offered` contains the instruction sets of the CPU.
///
/// # Errors
/// If the file cannot be read or is damaged, is larger than 512 MiB, is not for x86-64, or contains no code.
pub fn inspect(path: &Path, offered: &BTreeSet<String>) -> Result<KernelCode, Error> {
    let rules = Rules::parse(RULES, Path::new("profiles/audit.toml"))?;
    let patterns: Vec<&Pattern> = rules
        .kernels
        .iter()
        .flat_map(|kernel| &kernel.symbols)
        .chain(rules.inner_loops.iter().flat_map(|rule| &rule.symbols))
        .collect();
    let is_kernel = |name: &str| {
        PARTS.iter().any(|part| name.contains(part))
            && patterns.iter().any(|pattern| pattern.matches_symbol(name))
    };
    let program = Program::open_functions(path, LARGEST, is_kernel)?;
    let vectorised = program.functions.iter().filter(|function| function.packed > Width::None);
    let (mut all, mut unoptimised) = (0, 0);
    for function in vectorised {
        all += 1;
        unoptimised += usize::from(function.spills.is_some_and(|spills| spills.percent() > UNOPTIMISED));
    }
    let programs = [program];
    let verdict = native::check(&programs, &rules, offered, offered);
    let features = programs[0].features();
    let sets = verdict.instruction_sets.into_iter().map(|set| {
        // Unlike the audit, this count includes functions that check the CPU before they use the set.
        let count = features.get(&set.name).copied().unwrap_or(0);
        (set.name, count)
    });
    Ok(KernelCode {
        instruction_sets: sets.collect(),
        kernels: verdict.kernels,
        vectorised: all,
        unoptimised,
        libraries: programs[0].dynamic.libraries.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_named_kernel_passes_the_quick_check() {
        let rules = Rules::parse(RULES, Path::new("rules")).unwrap();
        let symbols = rules.kernels.iter().flat_map(|kernel| &kernel.symbols);
        let symbols = symbols.chain(rules.inner_loops.iter().flat_map(|rule| &rule.symbols));
        let slow: Vec<&str> = symbols
            .map(Pattern::as_str)
            .filter(|pattern| !PARTS.iter().any(|part| pattern.contains(part)))
            .collect();
        assert!(slow.is_empty(), "add a part of these names to PARTS: {slow:?}");
    }

    #[test]
    fn only_elf_files_are_inspected() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, "#!/bin/sh\n").unwrap();
        assert!(matches!(inspect(&path, &BTreeSet::new()), Err(Error::NotElf { .. })));
        let own = inspect(&std::env::current_exe().unwrap(), &BTreeSet::new()).unwrap();
        // The test program contains no kernels, but it needs the C library.
        assert!(own.kernels.is_empty() && own.libraries.contains("libc.so.6"), "{own:?}");
    }
}
