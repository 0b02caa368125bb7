//! Rule `portable`: no instruction beyond x86-64-v3, except in functions that check the CPU first.

use std::path::PathBuf;

use serde::Serialize;

use crate::ceiling::Ceiling;
use crate::feature::{Feature, Level};
use crate::program::{Program, Symbols};
use crate::rules::Rules;

/// Result of the rule `portable`: code beyond x86-64-v3, or beyond another limit of the program.
#[derive(Clone, Debug, Default, Serialize)]
pub struct PortableVerdict {
    /// Functions that are not on the allow list.
    pub violations: Vec<Violation>,
    /// Functions with instructions that the disassembler does not know. Unknown instructions fail the rule until the
    /// allow list contains them. Omitted from JSON, because [`strange`] reports them for any program.
    #[serde(skip)]
    pub unknown: Vec<Strange>,
    /// Functions that are on the allow list.
    pub allowed: Vec<Allowed>,
}

/// Name of unknown instructions in the allow list.
pub const UNKNOWN: &str = "unknown";

/// Function with instructions that the disassembler does not know.
#[derive(Clone, Debug, Serialize)]
pub struct Strange {
    /// File that contains the function.
    pub file: PathBuf,
    /// Name of the function.
    pub symbol: String,
    /// Address of the first unknown instruction.
    pub address: u64,
    /// Bytes of the first unknown instruction, in hexadecimal.
    pub bytes: String,
    /// Number of unknown instructions in the function.
    pub count: u64,
}

/// Returns the functions of `programs` with unknown instructions that `rules` do not allow, sorted by descending
/// number of such instructions.
pub fn strange(programs: &[Program], rules: &Rules) -> Vec<Strange> {
    let mut found = Vec::new();
    for program in programs {
        for function in &program.functions {
            let Some(unknown) = &function.unknown else { continue };
            if rules.allows(function, UNKNOWN).is_none() {
                found.push(Strange {
                    file: program.path.clone(),
                    symbol: function.name(),
                    address: unknown.address,
                    bytes: unknown.bytes(),
                    count: unknown.count,
                });
            }
        }
    }
    found.sort_by(|a, b| b.count.cmp(&a.count).then(a.address.cmp(&b.address)));
    found
}

/// Function that could crash on a CPU that the program is meant for.
#[derive(Clone, Debug, Serialize)]
pub struct Violation {
    /// File that contains the function.
    pub file: PathBuf,
    /// Name of the function.
    pub symbol: String,
    /// Address of the first offending instruction.
    pub address: u64,
    /// Disassembly of the first offending instruction.
    pub instruction: String,
    /// Instruction set that the first offending instruction needs.
    pub feature: Feature,
    /// Number of offending instructions in the function.
    pub count: u64,
    /// True if symbol names are missing, so that the allow list could not be applied.
    pub stripped: bool,
}

/// Function on the allow list.
#[derive(Clone, Debug, Serialize)]
pub struct Allowed {
    /// Name of the function.
    pub symbol: String,
    /// Instruction set that the function uses.
    pub feature: Feature,
    /// Reason why the function is safe.
    pub reason: String,
}

/// Finds instructions that not every x86-64-v3 CPU has.
pub fn check(programs: &[Program], rules: &Rules) -> PortableVerdict {
    check_each(programs, |_| Ceiling::level(Level::V3), rules)
}

/// Finds instructions beyond the given limit of each program.
pub fn check_each(
    programs: &[Program],
    ceiling: impl Fn(&Program) -> Ceiling,
    rules: &Rules,
) -> PortableVerdict {
    let mut verdict = PortableVerdict { unknown: strange(programs, rules), ..PortableVerdict::default() };
    for program in programs {
        let ceiling = ceiling(program);
        for function in &program.functions {
            for used in function.uses.iter().filter(|used| !ceiling.allows(used.feature)) {
                match rules.allows(function, &used.feature.name()) {
                    Some(allow) => verdict.allowed.push(Allowed {
                        symbol: function.name(),
                        feature: used.feature,
                        reason: allow.reason.clone(),
                    }),
                    None => verdict.violations.push(Violation {
                        file: program.path.clone(),
                        symbol: function.name(),
                        address: used.address,
                        instruction: used.instruction(),
                        feature: used.feature,
                        count: used.count,
                        stripped: program.symbols != Symbols::All && function.names.is_empty(),
                    }),
                }
            }
        }
    }
    // Functions with the most offending instructions come first, because a mistake usually affects many instructions.
    verdict.violations.sort_by(|a, b| b.count.cmp(&a.count).then(a.address.cmp(&b.address)));
    verdict
}
