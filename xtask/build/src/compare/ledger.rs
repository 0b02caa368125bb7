//! Samples of a comparison, grouped by what they measure.

use super::phase::Phase;
use super::shape::RunShape;

/// Key of a group of values. Values are comparable if their keys are equal.
#[derive(Clone, Debug, PartialEq)]
pub struct ValueKey {
    /// Phase that was measured.
    pub phase: Phase,
    /// Name of the model; `None` if the phase has none.
    pub model: Option<String>,
    /// Shape of the run; `None` if the phase has none.
    pub shape: Option<RunShape>,
}

/// All values of a comparison: for each key the samples of each build, in the order of the rounds.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    builds: usize,
    entries: Vec<(ValueKey, Vec<Vec<f64>>)>,
}

impl Ledger {
    /// Creates an empty ledger for `builds` builds.
    pub fn new(builds: usize) -> Self {
        Self { builds, entries: Vec::new() }
    }

    /// Adds a sample of build number `build`.
    pub fn add(&mut self, key: ValueKey, build: usize, value: f64) {
        let at = self.entries.iter().position(|(known, _)| *known == key).unwrap_or_else(|| {
            self.entries.push((key, vec![Vec::new(); self.builds]));
            self.entries.len() - 1
        });
        self.entries[at].1[build].push(value);
    }

    /// Appends all samples of `other`, which must have the same builds.
    pub fn append(&mut self, other: Ledger) {
        for (key, samples) in other.entries {
            for (build, values) in samples.into_iter().enumerate() {
                values.into_iter().for_each(|value| self.add(key.clone(), build, value));
            }
        }
    }

    /// Returns the entries sorted by phase, and within a phase in the order in which they were added.
    pub fn sorted(&self) -> Vec<&(ValueKey, Vec<Vec<f64>>)> {
        let mut entries: Vec<_> = self.entries.iter().collect();
        let rank = |phase: Phase| Phase::ALL.iter().position(|known| *known == phase);
        entries.sort_by_key(|(key, _)| rank(key.phase));
        entries
    }
}
