//! Simulates the rest of a stage: which unit runs at which time on the available slots.
//!
//! Dividing the remaining work by the number of slots would be too optimistic for builds that end in a chain: the last
//! crates wait for each other, and all cores but one are idle. The simulated time is at least the longest
//! remaining chain and at least the remaining work divided by the number of slots.

use super::{Forecast, Unit, UnitState};

/// Remaining time of an overdue unit, as a fraction of the time that it has already run.
const OVERDUE: f64 = 0.1;

/// Returns the indices of `units` in topological order. Units in a cycle come last.
pub fn order(units: &[Unit]) -> Vec<usize> {
    let mut missing: Vec<usize> = units.iter().map(|unit| unit.after.len()).collect();
    let followers = followers(units);
    let mut order: Vec<usize> = (0..units.len()).filter(|index| missing[*index] == 0).collect();
    let mut next = 0;
    while let Some(&index) = order.get(next) {
        next += 1;
        for &(follower, _) in &followers[index] {
            missing[follower] -= 1;
            if missing[follower] == 0 {
                order.push(follower);
            }
        }
    }
    order.extend((0..units.len()).filter(|index| missing[*index] > 0));
    order
}

/// Returns the dependents of each unit. A dependent's flag is true if it waits for the unit's end rather than for its
/// front.
pub fn followers(units: &[Unit]) -> Vec<Vec<(usize, bool)>> {
    let mut all = vec![Vec::new(); units.len()];
    for (index, unit) in units.iter().enumerate() {
        for after in &unit.after {
            all[after.unit].push((index, after.whole));
        }
    }
    all
}

/// Next event of a unit that runs in the simulation.
struct PlayEvent {
    at: f64,
    unit: usize,
    /// True for the end of the unit, false for its front.
    whole: bool,
}

/// Returns the number of seconds from `now` until every unit of `forecast` has ended, if each unit takes `pace` times
/// its expected duration. A unit whose entry in `skipped` is true takes no time.
pub fn seconds(forecast: &Forecast, skipped: &[bool], pace: f64, now: f64) -> f64 {
    let count = forecast.units.len();
    let followers = followers(&forecast.units);
    // Seconds that each unit still needs until its end and until its front; 0 for finished units.
    let (mut whole, mut front) = (vec![0.0_f64; count], vec![0.0_f64; count]);
    for index in 0..count {
        let expected = forecast.expected(index);
        let elapsed = match forecast.states[index] {
            UnitState::Waiting if !skipped[index] => 0.0,
            UnitState::Running(since) => (now - since).max(0.0),
            _ => continue,
        };
        whole[index] = (expected.seconds * pace - elapsed).max(elapsed * OVERDUE);
        front[index] = (expected.front * pace - elapsed).clamp(0.0, whole[index]);
    }
    // Length of the longest chain that begins with each unit. Longer chains start first, as in cargo.
    let mut chain = whole.clone();
    for &index in forecast.order.iter().rev() {
        for &(follower, needs_end) in &followers[index] {
            let own = if needs_end { whole[index] } else { front[index] };
            chain[index] = chain[index].max(own + chain[follower]);
        }
    }

    let is_live = |index: usize| match forecast.states[index] {
        UnitState::Waiting => !skipped[index],
        UnitState::Running(_) => true,
        UnitState::Kept | UnitState::Done(_) => false,
    };
    let mut missing: Vec<usize> = (0..count)
        .map(|index| forecast.units[index].after.iter().filter(|after| is_live(after.unit)).count())
        .collect();
    let mut started: Vec<bool> = (0..count).map(|index| !is_live(index)).collect();
    let mut events: Vec<PlayEvent> = Vec::new();
    let mut free = forecast.slots;
    let begin = |unit: usize, at: f64, events: &mut Vec<PlayEvent>| {
        events.push(PlayEvent { at: at + front[unit], unit, whole: false });
        events.push(PlayEvent { at: at + whole[unit], unit, whole: true });
    };
    let running =
        forecast.states.iter().enumerate().filter(|(_, state)| matches!(state, UnitState::Running(_)));
    for (index, _) in running {
        begin(index, 0.0, &mut events);
        started[index] = true;
        free = free.saturating_sub(1);
    }
    let mut time = 0.0_f64;
    loop {
        while free > 0 {
            let ready = (0..count).filter(|index| !started[*index] && missing[*index] == 0);
            let Some(first) = ready.max_by(|a, b| chain[*a].total_cmp(&chain[*b])) else { break };
            started[first] = true;
            free -= 1;
            begin(first, time, &mut events);
        }
        let nearest = (0..events.len()).min_by(|a, b| events[*a].at.total_cmp(&events[*b].at));
        let Some(nearest) = nearest else { break };
        let PlayEvent { at, unit, whole: is_end } = events.swap_remove(nearest);
        time = time.max(at);
        for &(follower, needs_end) in &followers[unit] {
            if needs_end == is_end {
                missing[follower] = missing[follower].saturating_sub(1);
            }
        }
        if is_end {
            free += 1;
        }
    }
    // Units in a cycle never become ready.
    let stuck: f64 = (0..count).filter(|index| !started[*index]).map(|index| whole[index]).sum();
    time + stuck / forecast.slots as f64
}
