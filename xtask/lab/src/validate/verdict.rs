//! What is said in the end, from what each check says.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How one check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CheckState {
    /// As it must be.
    Passed,
    /// Told, and not judged.
    Told,
    /// Not as it must be.
    Failed,
    /// The machine was too disturbed, or the run too short, to tell.
    Unclear,
}

/// One line of the result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// What was looked at.
    pub name: String,
    /// How it ended.
    pub state: CheckState,
    /// What came out, in a word or a ratio.
    pub said: String,
    /// A's figure.
    pub a: String,
    /// B's figure.
    pub b: String,
    /// Why B is not accepted for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Check {
    /// A check without figures.
    pub fn new(name: impl Into<String>, state: CheckState, said: String) -> Self {
        Self { name: name.into(), state, said, a: String::new(), b: String::new(), reason: None }
    }

    /// With the figures of both.
    pub fn with(mut self, a: String, b: String) -> Self {
        (self.a, self.b) = (a, b);
        self
    }

    /// With a reason against B.
    pub fn because(mut self, reason: String) -> Self {
        self.reason = Some(reason);
        self
    }
}

/// What is to be done with B.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It may take A's place.
    Accepted,
    /// It may not.
    NotAccepted,
    /// Another time, on a quieter machine.
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
    /// One failure decides; what is unclear can only keep a B from being accepted. Of no checks nothing can be told.
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

    /// The reasons behind it, what decides first.
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
