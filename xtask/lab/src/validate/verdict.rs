//! Verdict on B, derived from the results of the checks.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Result of one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CheckState {
    /// The criterion is met.
    Passed,
    /// The result is shown but not judged.
    Told,
    /// The criterion is not met.
    Failed,
    /// The result is unclear, because the machine was too disturbed or the run too short.
    Unclear,
}

/// Line of the result page for one check.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// Name of the check.
    pub name: String,
    /// Result of the check.
    pub state: CheckState,
    /// Result as a word or a ratio.
    pub said: String,
    /// Value of A.
    pub a: String,
    /// Value of B.
    pub b: String,
    /// Reason why this check prevents the acceptance of B.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Check {
    /// Creates a check without values.
    pub fn new(name: impl Into<String>, state: CheckState, said: String) -> Self {
        Self { name: name.into(), state, said, a: String::new(), b: String::new(), reason: None }
    }

    /// Adds the values of both sides.
    pub fn with(mut self, a: String, b: String) -> Self {
        (self.a, self.b) = (a, b);
        self
    }

    /// Adds the reason why B is not accepted.
    pub fn because(mut self, reason: String) -> Self {
        self.reason = Some(reason);
        self
    }
}

/// Verdict on B.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// B may replace A.
    Accepted,
    /// B may not replace A.
    NotAccepted,
    /// The measurements are inconclusive; repeat them on a quieter machine.
    CannotTell,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Verdict::Accepted => "accepted",
            Verdict::NotAccepted => "not accepted",
            Verdict::CannotTell => "cannot tell",
        })
    }
}

impl Verdict {
    /// Combines the checks. A single failed check decides the verdict. An unclear check only prevents acceptance. If
    /// there are no checks, the verdict is [`Verdict::CannotTell`].
    pub fn of(checks: &[Check]) -> Self {
        let any = |state| checks.iter().any(|check| check.state == state);
        if any(CheckState::Failed) {
            Verdict::NotAccepted
        } else if checks.is_empty() || any(CheckState::Unclear) {
            Verdict::CannotTell
        } else {
            Verdict::Accepted
        }
    }

    /// Returns the reasons for the verdict, starting with the deciding ones.
    pub fn reasons(checks: &[Check]) -> Vec<String> {
        let of = |state: CheckState| {
            let checks = checks.iter().filter(move |check| check.state == state);
            checks.filter_map(|check| check.reason.clone())
        };
        of(CheckState::Failed).chain(of(CheckState::Unclear)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_failure_decides_and_doubt_does_not_accept() {
        use CheckState::{Failed, Passed, Told, Unclear};
        let cases: [(&[CheckState], Verdict); 5] = [
            (&[Passed, Told, Passed], Verdict::Accepted),
            (&[Passed, Unclear], Verdict::CannotTell),
            (&[Unclear, Failed], Verdict::NotAccepted),
            (&[Failed], Verdict::NotAccepted),
            (&[], Verdict::CannotTell),
        ];
        for (states, expected) in cases {
            let check =
                |state: &CheckState| Check::new("x", *state, String::new()).because(format!("{state:?}"));
            let checks: Vec<Check> = states.iter().map(check).collect();
            assert_eq!(Verdict::of(&checks), expected, "{states:?}");
            let failed = states.iter().filter(|state| **state == Failed).count();
            assert!(Verdict::reasons(&checks).iter().take(failed).all(|reason| reason == "Failed"));
        }
    }
}
