//! Rule `native`: the program uses the instruction sets of the host, and no kernel is scalar.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::packed::Width;
use crate::program::{Function, Program};
use crate::rules::{InnerLoopRule, Kernel, Pattern, Rules};
use crate::spill::Spills;

/// Result of the rule `native`: how a native program uses the CPU.
#[derive(Clone, Debug, Serialize)]
pub struct NativeVerdict {
    /// Instruction sets that ggml has kernels for.
    pub instruction_sets: Vec<InstructionSet>,
    /// Kernels that were found, by name.
    pub kernels: Vec<KernelWidth>,
    /// Minimum number of kernels that must be found.
    pub least_kernels: usize,
    /// Number of kernels whose inner loops were examined for spills.
    pub kernels_examined: usize,
    /// Examined kernels that spill more than the rules allow, worst first. Spills cost time, but do not fail the rule.
    pub spills: Vec<KernelSpills>,
}

/// Kernel with an inner loop that keeps vector registers on the stack.
#[derive(Clone, Debug, Serialize)]
pub struct KernelSpills {
    /// Name of the kernel.
    pub name: String,
    /// Inner loop with the most spills.
    #[serde(flatten)]
    pub spills: Spills,
    /// Maximum number of moves per 100 packed arithmetic instructions.
    pub most_percent: u32,
}

/// Use of one instruction set.
#[derive(Clone, Debug, Serialize)]
pub struct InstructionSet {
    /// Name of the instruction set.
    pub name: String,
    /// Purpose of ggml's kernels for the instruction set.
    pub kernels: String,
    /// True if the host has the instruction set.
    pub offered: bool,
    /// True if the program must use the instruction set.
    pub expected: bool,
    /// Number of instructions that need the instruction set.
    pub count: u64,
    /// Functions with the most instructions of the set, at most [`SHOWN`].
    pub functions: Vec<String>,
}

/// Maximum number of functions listed per instruction set.
const SHOWN: usize = 8;

/// Vector width of one kernel.
#[derive(Clone, Debug, Serialize)]
pub struct KernelWidth {
    /// Name of the kernel, or the common part of its names.
    pub name: String,
    /// Widest packed arithmetic found.
    pub found: Width,
    /// Width that the instruction sets allow; `None` if the kernel is not judged.
    pub expected: Option<Width>,
    /// Start address of the kernel.
    pub address: u64,
}

impl InstructionSet {
    /// True if the instruction set should be used but is not.
    pub fn is_missed(&self) -> bool {
        self.expected && self.count == 0
    }
}

impl KernelWidth {
    /// True if the kernel is narrower than expected.
    pub fn is_scalar(&self) -> bool {
        self.expected.is_some_and(|expected| self.found < expected)
    }
}

impl NativeVerdict {
    /// True if enough kernels were found for a judgement.
    pub fn knows_the_kernels(&self) -> bool {
        self.kernels.len() >= self.least_kernels
    }

    /// True if no fault was found.
    pub fn passed(&self) -> bool {
        self.knows_the_kernels()
            && !self.kernels.iter().any(KernelWidth::is_scalar)
            && !self.instruction_sets.iter().any(InstructionSet::is_missed)
    }
}

/// Checks programs that belong together. `isa` contains the instruction sets that the programs' compilers could use,
/// and `offered` contains the host's instruction sets.
pub fn check(
    programs: &[Program],
    rules: &Rules,
    isa: &BTreeSet<String>,
    offered: &BTreeSet<String>,
) -> NativeVerdict {
    let functions: Vec<&Function> = programs.iter().flat_map(|program| &program.functions).collect();
    let (kernels_examined, spills) = inner_loops(&functions, rules);
    NativeVerdict {
        instruction_sets: instruction_sets(&functions, rules, isa, offered),
        kernels: kernels(&functions, rules, isa),
        least_kernels: rules.least_kernels,
        kernels_examined,
        spills,
    }
}

/// Returns the number of kernels that were examined for spills, and the kernels that spill too much.
fn inner_loops(functions: &[&Function], rules: &Rules) -> (usize, Vec<KernelSpills>) {
    let rule = |function: &Function| {
        let names = |rule: &&InnerLoopRule| rule.symbols.iter().any(|pattern| pattern.matches(function));
        rules.inner_loops.iter().find(names)
    };
    let vectorised = functions.iter().filter(|function| function.packed > Width::Xmm);
    let examined: Vec<_> = vectorised.filter_map(|function| Some((function, rule(function)?))).collect();
    let mut found: Vec<KernelSpills> = examined
        .iter()
        .filter_map(|(function, rule)| {
            let most_percent = rule.most_percent;
            let spills = function.spills.filter(|spills| spills.percent() > most_percent)?;
            Some(KernelSpills { name: function.name(), spills, most_percent })
        })
        .collect();
    found.sort_by_key(|kernel| std::cmp::Reverse(kernel.spills.percent()));
    (examined.len(), found)
}

fn instruction_sets(
    functions: &[&Function],
    rules: &Rules,
    isa: &BTreeSet<String>,
    offered: &BTreeSet<String>,
) -> Vec<InstructionSet> {
    let mut found: BTreeMap<String, Vec<(u64, &Function)>> = BTreeMap::new();
    for function in functions {
        // Every build contains functions that check the CPU first, so these functions say nothing about ggml's
        // kernels.
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

/// Returns the widest packed arithmetic of all matching functions; `None` if no function matches.
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
