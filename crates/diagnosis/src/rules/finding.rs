//! Rules and their findings.

use build_info::diagnosis::{CostBasis, SlowCause, SlowPhase};

use crate::observation::Observation;

/// Rule that finds one cause.
pub struct Rule {
    /// Stable name of the cause.
    pub id: &'static str,
    /// Names of less specific causes that this cause explains. They are not reported together with this cause.
    pub explains: &'static [&'static str],
    /// Function that looks for evidence.
    pub(crate) judge: fn(&Observation) -> Option<Finding>,
}

/// Evidence for a cause.
pub struct Finding {
    /// Description in one sentence.
    pub title: String,
    /// Phase that the cause slows down.
    pub phase: SlowPhase,
    /// Factor by which the phase is slower.
    pub slowdown: Slowdown,
    /// Readings that show the cause.
    pub evidence: Vec<String>,
    /// Change that removes the cause.
    pub change: String,
}

/// Factor by which a cause slows the process down.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Slowdown {
    /// Computed from readings of this process.
    Measured(f64),
    /// Rule of thumb.
    Estimated(f64),
    /// There is no factor.
    Unknown,
}

/// Highest factor that is reported. Beyond it, the factor says only that the process hardly runs.
const MOST: f64 = 100.0;

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
pub fn of_lost_time(lost: f64) -> Slowdown {
    Slowdown::Measured(1.0 / (1.0 - lost).max(1.0 / MOST))
}

/// Returns the share `share` in percent.
pub fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_are_limited() {
        assert_eq!(of_lost_time(0.5), Slowdown::Measured(2.0));
        assert_eq!(of_lost_time(0.0), Slowdown::Measured(1.0));
        assert_eq!(of_lost_time(1.5), Slowdown::Measured(MOST));
    }
}
