//! Forecasts how long the rest of a stage takes, from what each of its units took in the last build.
//!
//! A unit is one program that cargo or ninja starts: a compilation, a link, a run of a build script. [`Forecast`] is
//! told which units there are, what each took before ([`Records`]), and when each starts and ends. It knows no clock:
//! times are seconds since the stage began.

pub mod cargo;
pub mod ninja;
mod records;
mod rest;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

pub use records::{Records, Took};

/// A single unit is named with its seconds once it has run by itself for this long.
const ALONE: f64 = 5.0;

/// Part of all recorded seconds that counts as if it had been observed at the recorded pace, so that the first short
/// units of a stage do not decide the pace.
const PRIOR: f64 = 0.015;

/// Part of all recorded seconds after which a unit that has ended counts a third: other work on the machine comes and
/// goes, so the newest units tell most about the rest.
const MEMORY: f64 = 0.4;

/// One unit of a stage, before it has run.
#[derive(Clone, Debug, Default)]
pub struct Unit {
    /// Name in the records.
    pub name: String,
    /// Name for people.
    pub label: String,
    /// Duration in the last build, if it is known.
    pub took: Option<Took>,
    /// True if the bar counts it.
    pub counted: bool,
    /// Units that it waits for.
    pub after: Vec<After>,
}

/// A unit that another one waits for.
#[derive(Clone, Copy, Debug)]
pub struct After {
    /// Index of the unit that is waited for.
    pub unit: usize,
    /// True if it must have ended. Otherwise its front is enough: rustc writes a library's metadata, which other
    /// libraries need, before the machine code.
    pub whole: bool,
}

/// Progress of a unit.
#[derive(Clone, Copy, Debug, PartialEq)]
enum UnitState {
    /// Not started, as far as is known.
    Waiting,
    /// Made by an earlier build.
    Kept,
    /// Started at this second.
    Running(f64),
    /// Took this long.
    Done(Took),
}

/// The units of a stage and their progress.
#[derive(Debug)]
pub struct Forecast {
    units: Vec<Unit>,
    states: Vec<UnitState>,
    /// Indices of the units, each behind those that it waits for.
    order: Vec<usize>,
    /// Number of units that run side by side.
    slots: usize,
    /// Names of units whose end was told before their start.
    early: Vec<String>,
    /// Indices of the units that have ended, in that order.
    ended: Vec<usize>,
    /// Duration of a unit that has no record.
    guess: Took,
    /// Label of the unit that started or ended last.
    newest: String,
}

/// Content of a bar.
#[derive(Clone, Debug, PartialEq)]
pub struct Status {
    /// Share of the work that is done, from 0 to 1.
    pub share: f64,
    /// Number of units that are done.
    pub done: u64,
    /// Number of units.
    pub total: u64,
    /// Seconds until the end.
    pub left: f64,
    /// The unit that runs by itself and its seconds, or the newest unit.
    pub what: String,
}

impl Forecast {
    /// A stage of `units`, `slots` of which run side by side. A unit without a record is expected to take `guess`.
    pub fn new(units: Vec<Unit>, slots: usize, guess: Took) -> Self {
        let order = rest::order(&units);
        let states = vec![UnitState::Waiting; units.len()];
        Self {
            units,
            states,
            order,
            slots: slots.max(1),
            early: Vec::new(),
            ended: Vec::new(),
            guess,
            newest: String::new(),
        }
    }

    /// The unit `name` starts at the second `at`. A name that was not foreseen is added, with `label`.
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

    /// The unit `name` ends at the second `at`. `front` tells when, counted from its start, other units could begin;
    /// none if only then.
    ///
    /// A unit whose start was not seen takes the start of the one that has run longest: ninja tells no starts, so
    /// those are assumed in the order of its plan, and the wrong one may have been assumed.
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

    /// The unit `name` need not run: an earlier build made it.
    pub fn keep(&mut self, name: &str) {
        if let Some(index) = self.find(name, |state| state == UnitState::Waiting) {
            self.states[index] = UnitState::Kept;
        }
    }

    /// The unit `name` has ended and its start was not told, or will be told after the end: cargo tells starts and ends
    /// by two pipes.
    pub fn end_early(&mut self, name: &str) {
        self.keep(name);
        self.early.push(name.to_string());
    }

    /// The second at which the unit `name`, which runs, started.
    pub fn since(&self, name: &str) -> Option<f64> {
        let index = self.find(name, |state| matches!(state, UnitState::Running(_)))?;
        match self.states[index] {
            UnitState::Running(since) => Some(since),
            _ => None,
        }
    }

    /// Number of units that run.
    pub fn running(&self) -> usize {
        self.states.iter().filter(|state| matches!(state, UnitState::Running(_))).count()
    }

    /// Name and label of the first unit that waits.
    pub fn next(&self) -> Option<(String, String)> {
        let index = self.states.iter().position(|state| *state == UnitState::Waiting)?;
        Some((self.units[index].name.clone(), self.units[index].label.clone()))
    }

    /// Content of the bar at the second `now`.
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

    /// Seconds until the last unit ends, at the second `now`.
    pub fn left(&self, now: f64) -> f64 {
        rest::seconds(self, &self.skipped(), self.pace(now), now)
    }

    /// Durations of the units of this run, by their names: the longest of several of one name.
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

    /// The unit that runs by itself for a while and its seconds, or the newest unit.
    fn what(&self, now: f64) -> String {
        match self.longest_running() {
            Some((index, since)) if self.running() == 1 && now - since >= ALONE => {
                format!("{}, {:.0} s", self.units[index].label, (now - since).floor())
            }
            _ => self.newest.clone(),
        }
    }

    /// Ratio of the durations of this run to those of the records, over units that have ended or already run longer
    /// than expected.
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
        // Without any record there is nothing to correct.
        if pace.is_finite() && pace > 0.0 { pace } else { 1.0 }
    }

    /// Expected duration of the unit at `index`, at the pace of its record.
    fn expected(&self, index: usize) -> Took {
        self.units[index].took.unwrap_or(self.guess)
    }

    /// True for each waiting unit that will not run, as far as can be told.
    fn skipped(&self) -> Vec<bool> {
        let mut skipped = self.presumed_kept();
        let followers = rest::followers(&self.units);
        for &index in self.order.iter().rev() {
            let of = &followers[index];
            // What waits for it has not waited: another choice of features does without it, or it was kept.
            let is_late = of.iter().any(|(follower, _)| self.states[*follower] != UnitState::Waiting);
            let is_unused = !of.is_empty() && of.iter().all(|(follower, _)| skipped[*follower]);
            skipped[index] |= self.states[index] == UnitState::Waiting && (is_late || is_unused);
        }
        skipped
    }

    /// True for each waiting unit that is taken as made by an earlier build though it was not reported yet: most units
    /// so far were, and nothing that it waits for is compiled in this run.
    fn presumed_kept(&self) -> Vec<bool> {
        let count = |what: fn(&UnitState) -> bool| self.states.iter().filter(|state| what(state)).count();
        let kept = count(|state| *state == UnitState::Kept);
        let compiled = count(|state| matches!(state, UnitState::Running(_) | UnitState::Done(_)));
        if kept == 0 || kept < compiled {
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

    /// Index and start of the unit that has run longest.
    fn longest_running(&self) -> Option<(usize, f64)> {
        let running = self.states.iter().enumerate().filter_map(|(index, state)| match state {
            UnitState::Running(since) => Some((index, *since)),
            _ => None,
        });
        running.min_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// Index of the first unit `name` whose state `wanted` accepts.
    fn find(&self, name: &str, wanted: impl Fn(UnitState) -> bool) -> Option<usize> {
        self.units.iter().zip(&self.states).position(|(unit, state)| wanted(*state) && unit.name == name)
    }
}

/// `value` between 0 and `most`; 0 where it is no number.
fn within(value: f64, most: f64) -> f64 {
    if value.is_nan() { 0.0 } else { value.clamp(0.0, most) }
}
