//! Estimates the remaining time of a stage from the durations of its units in the last build.
//!
//! A unit is one program that cargo or ninja starts: a compilation, a link, or a run of a build script. [`Forecast`]
//! receives the list of units with their recorded durations ([`Records`]), and an event when each unit starts and ends.
//! The forecast reads no clock: times are seconds since the stage began.

pub mod cargo;
pub mod ninja;
mod records;
mod rest;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

pub use records::{Records, Took};

/// Seconds after which a unit that runs alone is shown with its elapsed time.
const ALONE: f64 = 5.0;

/// Weight of the recorded pace, as a fraction of all recorded seconds. The weight prevents the first short units of a
/// stage from determining the pace.
const PRIOR: f64 = 0.015;

/// Decay of old observations, as a fraction of all recorded seconds: after this much further work, a finished unit has
/// a weight of 1/e. The load from other programs changes, so the newest units predict the remaining time best.
const MEMORY: f64 = 0.4;

/// Unit of a stage before it runs.
#[derive(Clone, Debug, Default)]
pub struct Unit {
    /// Name of the unit in the records.
    pub name: String,
    /// Name that is shown to the user.
    pub label: String,
    /// Duration in the last build, if known.
    pub took: Option<Took>,
    /// True if the progress bar counts the unit.
    pub counted: bool,
    /// Units that must finish, or release their metadata, before this unit starts.
    pub after: Vec<After>,
}

/// Dependency on another unit.
#[derive(Clone, Copy, Debug)]
pub struct After {
    /// Index of the unit to wait for.
    pub unit: usize,
    /// True if the other unit must have ended. Otherwise its front is enough: rustc writes a library's metadata,
    /// which other libraries need, before the machine code.
    pub whole: bool,
}

/// State of a unit.
#[derive(Clone, Copy, Debug, PartialEq)]
enum UnitState {
    /// Waiting: no start was reported.
    Waiting,
    /// Made by an earlier build.
    Kept,
    /// Running since this second.
    Running(f64),
    /// Finished after this duration.
    Done(Took),
}

/// Units of a stage and their states.
#[derive(Debug)]
pub struct Forecast {
    units: Vec<Unit>,
    states: Vec<UnitState>,
    /// Indices of the units in topological order.
    order: Vec<usize>,
    /// Number of units that run in parallel.
    slots: usize,
    /// True if an earlier build finished the stage. That build probably made the units that have not been reported.
    is_rebuild: bool,
    /// Names of units whose end was reported before their start.
    early: Vec<String>,
    /// Indices of the finished units, in the order in which they ended.
    ended: Vec<usize>,
    /// Assumed duration of a unit without a record.
    guess: Took,
    /// Label of the unit that started or ended last.
    newest: String,
}

/// Content of the progress bar.
#[derive(Clone, Debug, PartialEq)]
pub struct Status {
    /// Fraction of the work that is done, from 0 to 1.
    pub share: f64,
    /// Number of finished units.
    pub done: u64,
    /// Total number of units.
    pub total: u64,
    /// Estimated number of seconds until the end.
    pub left: f64,
    /// Label and elapsed seconds of the unit that runs alone, or the label of the newest unit.
    pub what: String,
}

impl Forecast {
    /// Creates a forecast of a stage in which `slots` of the `units` run in parallel. A unit without a record is
    /// expected to take `guess`.
    pub fn new(units: Vec<Unit>, slots: usize, guess: Took) -> Self {
        let order = rest::order(&units);
        let states = vec![UnitState::Waiting; units.len()];
        Self {
            units,
            states,
            order,
            slots: slots.max(1),
            is_rebuild: true,
            early: Vec::new(),
            ended: Vec::new(),
            guess,
            newest: String::new(),
        }
    }

    /// Expects every unit that is not reported as kept to run, because no earlier build finished the stage.
    pub fn first(mut self) -> Self {
        self.is_rebuild = false;
        self
    }

    /// Marks the unit `name` as started at second `at`. If the unit is unknown, adds it with `label`.
    pub fn start(&mut self, name: &str, label: &str, at: f64) {
        if let Some(early) = self.early.iter().position(|other| other == name) {
            self.early.swap_remove(early);
            return;
        }
        let index = self.find(name, |state| state == UnitState::Waiting).unwrap_or_else(|| {
            let unit = Unit { name: name.to_string(), label: label.to_string(), ..Unit::default() };
            self.units.push(unit);
            self.states.push(UnitState::Waiting);
            self.order.push(self.units.len() - 1);
            self.units.len() - 1
        });
        self.states[index] = UnitState::Running(at);
        self.newest = self.units[index].label.clone();
    }

    /// Marks the unit `name` as ended at second `at`. `front` is the number of seconds from the unit's start until
    /// other units could start; `None` means that other units had to wait for the unit's end.
    ///
    /// If the start of the unit was not reported, the unit takes over the start time of the unit that has run longest.
    /// ninja reports no starts, so starts are assumed in the order of its plan, and that assumption can be wrong.
    pub fn end(&mut self, name: &str, at: f64, front: Option<f64>) {
        let running = |state: UnitState| matches!(state, UnitState::Running(_));
        let index = match self.find(name, running) {
            Some(index) => index,
            None => {
                let Some(index) = self.find(name, |state| state == UnitState::Waiting) else { return };
                let Some((other, _)) = self.longest_running() else {
                    self.states[index] = UnitState::Kept;
                    return;
                };
                self.states.swap(index, other);
                index
            }
        };
        let UnitState::Running(since) = self.states[index] else { return };
        let seconds = (at - since).max(0.0);
        let front = front.unwrap_or(seconds).clamp(0.0, seconds);
        self.states[index] = UnitState::Done(Took { seconds, front });
        self.ended.push(index);
        self.newest = self.units[index].label.clone();
    }

    /// Marks the unit `name` as made by an earlier build.
    pub fn keep(&mut self, name: &str) {
        if let Some(index) = self.find(name, |state| state == UnitState::Waiting) {
            self.states[index] = UnitState::Kept;
        }
    }

    /// Marks the unit `name` as ended although its start was not reported yet. The order can differ because cargo
    /// reports starts and ends through two pipes.
    pub fn end_early(&mut self, name: &str) {
        self.keep(name);
        self.early.push(name.to_string());
    }

    /// Returns the second at which the running unit `name` started, or `None` if it is not running.
    pub fn since(&self, name: &str) -> Option<f64> {
        let index = self.find(name, |state| matches!(state, UnitState::Running(_)))?;
        match self.states[index] {
            UnitState::Running(since) => Some(since),
            _ => None,
        }
    }

    /// Returns the number of running units.
    pub fn running(&self) -> usize {
        self.states.iter().filter(|state| matches!(state, UnitState::Running(_))).count()
    }

    /// Returns the name and the label of the first waiting unit.
    pub fn next(&self) -> Option<(String, String)> {
        let index = self.states.iter().position(|state| *state == UnitState::Waiting)?;
        Some((self.units[index].name.clone(), self.units[index].label.clone()))
    }

    /// Returns the content of the progress bar at second `now`.
    pub fn status(&self, now: f64) -> Status {
        let pace = self.pace(now);
        let skipped = self.skipped();
        let (mut done, mut total) = (0, 0);
        let (mut made, mut all) = (0.0, 0.0);
        for (index, (unit, state)) in self.units.iter().zip(&self.states).enumerate() {
            let expected = self.expected(index).seconds;
            let is_kept = *state == UnitState::Kept || skipped[index];
            let part = match state {
                UnitState::Done(_) => 1.0,
                UnitState::Running(since) => within((now - since) / (expected * pace).max(0.001), 0.95),
                UnitState::Waiting | UnitState::Kept => 0.0,
            };
            if !is_kept {
                made += part * expected;
                all += expected;
            }
            if unit.counted {
                total += 1;
                done += u64::from(is_kept || matches!(state, UnitState::Done(_)));
            }
        }
        let share = if all > 0.0 { within(made / all, 1.0) } else { 0.0 };
        Status { share, done, total, left: self.left(now), what: self.what(now) }
    }

    /// Returns the estimated number of seconds from `now` until the last unit ends.
    pub fn left(&self, now: f64) -> f64 {
        rest::seconds(self, &self.skipped(), self.pace(now), now)
    }

    /// Returns the durations of the units that ran, by name. Among units with equal names, the longest counts.
    pub fn took(&self) -> BTreeMap<String, Took> {
        let mut all: BTreeMap<String, Took> = BTreeMap::new();
        for (unit, state) in self.units.iter().zip(&self.states) {
            let UnitState::Done(took) = state else { continue };
            match all.get(&unit.name) {
                Some(other) if other.seconds >= took.seconds => {}
                _ => drop(all.insert(unit.name.clone(), *took)),
            }
        }
        all
    }

    /// Returns the label and elapsed seconds of the unit that runs alone, or the label of the newest unit.
    fn what(&self, now: f64) -> String {
        match self.longest_running() {
            Some((index, since)) if self.running() == 1 && now - since >= ALONE => {
                format!("{}, {:.0} s", self.units[index].label, (now - since).floor())
            }
            _ => self.newest.clone(),
        }
    }

    /// Returns the ratio of this run's durations to the recorded ones, over units that have ended or have already
    /// run longer than expected.
    fn pace(&self, now: f64) -> f64 {
        let all: f64 = self.units.iter().filter_map(|unit| unit.took).map(|took| took.seconds).sum();
        let (mut expected, mut observed) = (0.0, 0.0);
        for (unit, state) in self.units.iter().zip(&self.states) {
            if let (Some(took), UnitState::Running(since)) = (unit.took, state)
                && now - since > took.seconds
            {
                expected += took.seconds;
                observed += now - since;
            }
        }
        let mut later = 0.0;
        for &index in self.ended.iter().rev() {
            if let (Some(took), UnitState::Done(now)) = (self.units[index].took, self.states[index]) {
                let weight = (-later / (all * MEMORY).max(f64::MIN_POSITIVE)).exp();
                expected += weight * took.seconds;
                observed += weight * now.seconds;
                later += took.seconds;
            }
        }
        let prior = all * PRIOR;
        let pace = (prior + observed) / (prior + expected);
        // Without records, no correction is possible.
        if pace.is_finite() && pace > 0.0 { pace } else { 1.0 }
    }

    /// Returns the recorded duration of the unit at `index`, or the guess if the unit has no record. The pace is not
    /// applied.
    fn expected(&self, index: usize) -> Took {
        self.units[index].took.unwrap_or(self.guess)
    }

    /// Returns one flag per unit: true if the unit waits and is not expected to run.
    fn skipped(&self) -> Vec<bool> {
        let mut skipped = self.presumed_kept();
        let followers = rest::followers(&self.units);
        for &index in self.order.iter().rev() {
            let of = &followers[index];
            // A dependent of this unit did not wait: either the features in use do not need the unit, or the
            // dependent was kept.
            let is_late = of.iter().any(|(follower, _)| self.states[*follower] != UnitState::Waiting);
            let is_unused = !of.is_empty() && of.iter().all(|(follower, _)| skipped[*follower]);
            skipped[index] |= self.states[index] == UnitState::Waiting && (is_late || is_unused);
        }
        skipped
    }

    /// Returns one flag per unit: true if the unit waits and was probably made by an earlier build. A unit is
    /// presumed made if most units so far were kept and no dependency of the unit is compiled in this run.
    fn presumed_kept(&self) -> Vec<bool> {
        let count = |what: fn(&UnitState) -> bool| self.states.iter().filter(|state| what(state)).count();
        let kept = count(|state| *state == UnitState::Kept);
        let compiled = count(|state| matches!(state, UnitState::Running(_) | UnitState::Done(_)));
        if !self.is_rebuild || kept == 0 || kept < compiled {
            return vec![false; self.units.len()];
        }
        let mut touched = vec![false; self.units.len()];
        for &index in &self.order {
            touched[index] = matches!(self.states[index], UnitState::Running(_) | UnitState::Done(_))
                || self.units[index].after.iter().any(|after| touched[after.unit]);
        }
        let waits = self.states.iter().map(|state| *state == UnitState::Waiting);
        waits.zip(touched).map(|(waits, touched)| waits && !touched).collect()
    }

    /// Returns the index and the start of the unit that has run longest.
    fn longest_running(&self) -> Option<(usize, f64)> {
        let running = self.states.iter().enumerate().filter_map(|(index, state)| match state {
            UnitState::Running(since) => Some((index, *since)),
            _ => None,
        });
        running.min_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// Returns the index of the first unit `name` whose state satisfies `wanted`.
    fn find(&self, name: &str, wanted: impl Fn(UnitState) -> bool) -> Option<usize> {
        self.units.iter().zip(&self.states).position(|(unit, state)| wanted(*state) && unit.name == name)
    }
}

/// Clamps `value` to the range from 0 to `most`; returns 0 for NaN.
fn within(value: f64, most: f64) -> f64 {
    if value.is_nan() { 0.0 } else { value.clamp(0.0, most) }
}
