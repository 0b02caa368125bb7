//! `native`: what the host offers is used, and no kernel is scalar.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::packed::Width;
use crate::program::{Function, Program};
use crate::rules::{Kernel, Pattern, Rules};

/// What a native program makes of its CPU.
#[derive(Clone, Debug, Serialize)]
pub struct NativeVerdict {
    /// The instruction sets that ggml has kernels for.
    pub instruction_sets: Vec<InstructionSet>,
    /// The kernels that were found, by name.
    pub kernels: Vec<KernelWidth>,
    /// Kernels that had to be found, at least.
    pub least_kernels: usize,
}

/// One instruction set.
#[derive(Clone, Debug, Serialize)]
pub struct InstructionSet {
    /// Its name.
    pub name: String,
    /// What ggml does with it.
    pub kernels: String,
    /// Whether the host has it.
    pub offered: bool,
    /// Whether it must occur.
    pub expected: bool,
    /// Instructions that need it.
    pub count: u64,
    /// The functions that use it most, at most [`SHOWN`].
    pub functions: Vec<String>,
}

/// Functions that are named of each instruction set.
const SHOWN: usize = 8;

/// One kernel.
#[derive(Clone, Debug, Serialize)]
pub struct KernelWidth {
    /// Its name, or what its names have in common.
    pub name: String,
    /// Width of its packed arithmetic.
    pub found: Width,
    /// Width that the instruction sets give; none where it is not judged.
    pub expected: Option<Width>,
    /// Where it begins.
    pub address: u64,
}

impl InstructionSet {
    /// Whether it was left unused without need.
    pub fn is_missed(&self) -> bool {
        self.expected && self.count == 0
    }
}

impl KernelWidth {
    /// Whether it is narrower than it should be.
    pub fn is_scalar(&self) -> bool {
        self.expected.is_some_and(|expected| self.found < expected)
    }
}

impl NativeVerdict {
    /// Whether enough kernels were found to say anything.
    pub fn knows_the_kernels(&self) -> bool {
        self.kernels.len() >= self.least_kernels
    }

    /// Whether there is nothing to complain of.
    pub fn passed(&self) -> bool {
        self.knows_the_kernels()
            && !self.kernels.iter().any(KernelWidth::is_scalar)
            && !self.instruction_sets.iter().any(InstructionSet::is_missed)
    }
}

/// Holds programs that belong together against what their compilers were free to use, `isa`, and what the host
/// has, `offered`.
pub fn check(
    programs: &[Program],
    rules: &Rules,
    isa: &BTreeSet<String>,
    offered: &BTreeSet<String>,
) -> NativeVerdict {
    let functions: Vec<&Function> = programs.iter().flat_map(|program| &program.functions).collect();
    NativeVerdict {
        instruction_sets: instruction_sets(&functions, rules, isa, offered),
        kernels: kernels(&functions, rules, isa),
        least_kernels: rules.least_kernels,
    }
}

fn instruction_sets(
    functions: &[&Function],
    rules: &Rules,
    isa: &BTreeSet<String>,
    offered: &BTreeSet<String>,
) -> Vec<InstructionSet> {
    let mut found: BTreeMap<String, Vec<(u64, &Function)>> = BTreeMap::new();
    for function in functions {
        // What asks the CPU first is there in every build, and says nothing of ggml's kernels.
        for used in function.uses.iter().filter(|used| rules.allows(function, &used.feature.name()).is_none())
        {
            found.entry(used.feature.name()).or_default().push((used.count, function));
        }
    }
    let has = |names: &[String]| names.iter().all(|name| isa.contains(name));
    rules
        .instruction_sets
        .iter()
        .map(|set| {
            let mut users = found.get(&set.name).cloned().unwrap_or_default();
            users.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.address.cmp(&b.1.address)));
            InstructionSet {
                name: set.name.clone(),
                kernels: set.kernels.clone(),
                offered: offered.contains(&set.name),
                expected: isa.contains(&set.name)
                    && has(&set.needs)
                    && !set.unless.iter().any(|name| isa.contains(name)),
                count: users.iter().map(|(count, _)| count).sum(),
                functions: users.iter().take(SHOWN).map(|(_, function)| function.name()).collect(),
            }
        })
        .collect()
}

fn kernels(functions: &[&Function], rules: &Rules, isa: &BTreeSet<String>) -> Vec<KernelWidth> {
    let mut found = Vec::new();
    for kernel in &rules.kernels {
        if kernel.each {
            let single = kernel.symbols.iter().map(std::slice::from_ref);
            found.extend(single.filter_map(|symbols| measure(functions, kernel, symbols, isa)));
        } else {
            found.extend(measure(functions, kernel, &kernel.symbols, isa));
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

/// The widest packed arithmetic in all functions that match, if there are any.
fn measure(
    functions: &[&Function],
    kernel: &Kernel,
    symbols: &[Pattern],
    isa: &BTreeSet<String>,
) -> Option<KernelWidth> {
    let matching: Vec<&&Function> =
        functions.iter().filter(|function| symbols.iter().any(|pattern| pattern.matches(function))).collect();
    Some(KernelWidth {
        name: symbols.first()?.as_str().trim_matches('*').to_string(),
        found: matching.iter().map(|function| function.packed).max()?,
        expected: kernel.expected(isa),
        address: matching.iter().map(|function| function.address).min()?,
    })
}
