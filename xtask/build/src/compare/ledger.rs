//! Values as they come in, by what they are of.

use super::phase::Phase;
use super::shape::RunShape;

/// What a value is of. Two values are comparable when this is equal.
#[derive(Clone, Debug, PartialEq)]
pub struct ValueKey {
    /// What was measured.
    pub phase: Phase,
    /// On which model.
    pub model: Option<String>,
    /// In which shape.
    pub shape: Option<RunShape>,
}

/// All values: for each key the builds' samples, in the order of rounds.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    builds: usize,
    entries: Vec<(ValueKey, Vec<Vec<f64>>)>,
}

impl Ledger {
    /// An empty one for `builds` builds.
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

    /// Adds all that is in `other`, which is of the same builds.
    pub fn append(&mut self, other: Ledger) {
        for (key, samples) in other.entries {
            for (build, values) in samples.into_iter().enumerate() {
                values.into_iter().for_each(|value| self.add(key.clone(), build, value));
            }
        }
    }

    /// The entries: phase by phase, and in the order in which they came first.
    pub fn sorted(&self) -> Vec<&(ValueKey, Vec<Vec<f64>>)> {
        let mut entries: Vec<_> = self.entries.iter().collect();
        let rank = |phase: Phase| Phase::ALL.iter().position(|known| *known == phase);
        entries.sort_by_key(|(key, _)| rank(key.phase));
        entries
    }
}
