//! Rules that find causes, one file per subject, and the table of all rules.

mod clocks;
mod finding;
mod gpu;
mod kernels;
mod limits;
mod memory;
mod neighbours;
pub(crate) mod notes;
mod numa;
mod storage;
mod threads;
mod waiting;

pub use finding::Rule;

/// All rules.
pub const RULES: &[Rule] = &[
    threads::OVER_QUOTA,
    threads::OVER_AFFINITY,
    threads::OVER_CPUS,
    threads::ON_SIBLINGS,
    threads::ON_EFFICIENCY_CORES,
    threads::SINGLE,
    threads::FEW,
    limits::THROTTLED,
    limits::NICED,
    limits::TRACED,
    memory::CONTEXT_OVER_MEMORY,
    memory::MODEL_OVER_MEMORY,
    memory::SWAPPED,
    memory::EVICTED,
    memory::NO_HUGE_PAGES,
    storage::SLOW_STORAGE,
    kernels::WITHOUT_AVX2,
    kernels::WITHOUT_AVX512,
    kernels::UNOPTIMISED,
    kernels::SANITIZER,
    waiting::SPINNING,
    waiting::BLAS_THREADS,
    neighbours::BUSY,
    neighbours::STOLEN,
    gpu::NO_BACKEND,
    gpu::NO_DEVICE,
    gpu::NOT_OPENED,
    clocks::LOW,
    numa::REMOTE,
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_documented_and_explain_other_causes() {
        let names: BTreeSet<&str> = RULES.iter().map(|rule| rule.id).collect();
        assert_eq!(names.len(), RULES.len());
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src/tune/why.md");
        let page = std::fs::read_to_string(page).unwrap();
        for rule in RULES {
            assert!(
                page.contains(&format!("| `{}` |", rule.id)),
                "docs/src/tune/why.md does not list {}",
                rule.id
            );
            for explained in rule.explains {
                assert!(names.contains(explained) && *explained != rule.id, "{}: {explained}", rule.id);
            }
        }
    }
}
