//! `portable`: nothing beyond x86-64-v3 outside functions that are known to ask the CPU first.

use std::path::PathBuf;

use serde::Serialize;

use crate::ceiling::Ceiling;
use crate::feature::{Feature, Level};
use crate::program::{Program, Symbols};
use crate::rules::Rules;

/// What was found beyond x86-64-v3, or beyond what each program may use.
#[derive(Clone, Debug, Default, Serialize)]
pub struct PortableVerdict {
    /// What is on no list.
    pub violations: Vec<Violation>,
    /// Code that the disassembler does not know: it may be anything, so it is not portable until somebody has looked.
    /// Left out of JSON, since [`strange`] says it of any program.
    #[serde(skip)]
    pub unknown: Vec<Strange>,
    /// What is on the list.
    pub allowed: Vec<Allowed>,
}

/// What the list calls code that the disassembler does not know.
pub const UNKNOWN: &str = "unknown";

/// A function with code that the disassembler does not know.
#[derive(Clone, Debug, Serialize)]
pub struct Strange {
    /// File that holds it.
    pub file: PathBuf,
    /// Its name.
    pub symbol: String,
    /// Address of the first such place.
    pub address: u64,
    /// Its bytes, in hexadecimal.
    pub bytes: String,
    /// How many such places the function has.
    pub count: u64,
}

/// Every function of `programs` with code that the disassembler does not know, but those that `rules` allow it; the
/// ones with the most of it first.
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

/// A function that a CPU which the program is for may die of.
#[derive(Clone, Debug, Serialize)]
pub struct Violation {
    /// File that holds it.
    pub file: PathBuf,
    /// Its name.
    pub symbol: String,
    /// Address of the first such instruction.
    pub address: u64,
    /// That instruction.
    pub instruction: String,
    /// What it needs.
    pub feature: Feature,
    /// How many such instructions the function has.
    pub count: u64,
    /// Whether names are missing, so that the allow list could not be applied.
    pub stripped: bool,
}

/// A function that may use more.
#[derive(Clone, Debug, Serialize)]
pub struct Allowed {
    /// Its name.
    pub symbol: String,
    /// What it uses beyond that.
    pub feature: Feature,
    /// Why that is no harm.
    pub reason: String,
}

/// Looks for instructions that not every x86-64-v3 CPU has.
pub fn check(programs: &[Program], rules: &Rules) -> PortableVerdict {
    check_each(programs, |_| Ceiling::level(Level::V3), rules)
}

/// Looks for instructions beyond what each of the programs may use.
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
    // The functions that use the most first: what is there by accident is rarely alone.
    verdict.violations.sort_by(|a, b| b.count.cmp(&a.count).then(a.address.cmp(&b.address)));
    verdict
}
