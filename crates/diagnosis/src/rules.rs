//! Rules that find causes, one file per subject, and the table of all rules.

mod clocks;
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

use build_info::diagnosis::{CostBasis, SlowCause, SlowPhase};

use crate::observation::Observation;

/// Rule that finds one cause.
pub struct Rule {
    /// Stable name of the cause.
    pub id: &'static str,
    /// Names of less specific causes that this cause explains, and which are therefore not reported beside it.
    pub explains: &'static [&'static str],
    /// Function that looks for evidence.
    judge: fn(&Observation) -> Option<Finding>,
}

/// Evidence for a cause.
struct Finding {
    title: String,
    phase: SlowPhase,
    slowdown: Slowdown,
    evidence: Vec<String>,
    change: String,
}

/// Factor by which a cause slows the process down.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Slowdown {
    /// Computed from readings of this process.
    Measured(f64),
    /// Rule of thumb.
    Estimated(f64),
    /// There is no factor.
    Unknown,
}

/// Highest factor that is reported. Beyond it, the factor says only that the process hardly runs.
const MOST: f64 = 100.0;

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

impl Rule {
    /// Returns the cause, if the observation contains the evidence for it.
    pub(crate) fn cause(&self, observation: &Observation) -> Option<SlowCause> {
        let Finding { title, phase, slowdown, evidence, change } = (self.judge)(observation)?;
        let (factor, basis) = match slowdown {
            Slowdown::Measured(factor) => (Some(factor), CostBasis::Measured),
            Slowdown::Estimated(factor) => (Some(factor), CostBasis::Estimated),
            Slowdown::Unknown => (None, CostBasis::Unknown),
        };
        let slowdown = factor.filter(|factor| factor.is_finite()).map(|factor| factor.clamp(1.0, MOST));
        Some(SlowCause { id: self.id.to_string(), title, phase, slowdown, basis, evidence, change })
    }
}

/// Returns the slowdown of threads that lose the share `lost` of their time. All threads of a team wait for the
/// slowest, so the loss of one thread is the loss of the team.
fn of_lost_time(lost: f64) -> Slowdown {
    Slowdown::Measured(1.0 / (1.0 - lost).max(1.0 / MOST))
}

/// Returns the share `share` in percent.
fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

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

    #[test]
    fn factors_are_limited() {
        assert_eq!(of_lost_time(0.5), Slowdown::Measured(2.0));
        assert_eq!(of_lost_time(0.0), Slowdown::Measured(1.0));
        assert_eq!(of_lost_time(1.5), Slowdown::Measured(MOST));
    }
}
