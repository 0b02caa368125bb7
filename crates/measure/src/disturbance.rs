//! Load from other programs on the machine during a measurement.

use std::time::Instant;

use host::process;
use serde::{Deserialize, Serialize};

/// Load during one round of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Round {
    /// Duration of the round, in seconds.
    pub seconds: f64,
    /// Load average over one minute, at the end of the round.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load_average: Option<f64>,
    /// Average number of cores that other processes, or other guests of the machine, kept busy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cores_busy_elsewhere: Option<f64>,
}

/// Observation of the machine's load from [`start`](Self::start) to [`stop`](Self::stop).
pub struct Watch {
    started: Instant,
    counters: Option<Counters>,
}

impl Watch {
    /// Starts the observation.
    pub fn start() -> Self {
        Self { started: Instant::now(), counters: Counters::read() }
    }

    /// Ends the observation and returns the load since its start.
    pub fn stop(self) -> Round {
        let elsewhere = self.counters.zip(Counters::read()).and_then(|(before, after)| after.since(&before));
        Round {
            seconds: self.started.elapsed().as_secs_f64(),
            load_average: process::load_average(),
            cores_busy_elsewhere: elsewhere,
        }
    }
}

/// Clock ticks since the start of the machine or of this process.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Counters {
    /// Busy ticks of all CPUs.
    busy: u64,
    /// All ticks of all CPUs.
    all: u64,
    /// Ticks of this process and of its children that have ended.
    own: u64,
    cpus: u64,
}

impl Counters {
    fn read() -> Option<Self> {
        Self::parse(&std::fs::read_to_string("/proc/stat").ok()?, &process::ProcFolder::this().counters()?)
    }

    /// Fields of the CPU line in proc_stat(5): user, nice, system, idle, iowait, irq, softirq, steal.
    fn parse(machine: &str, process: &process::Counters) -> Option<Self> {
        let numbers = |line: &str| -> Option<Vec<u64>> {
            line.split_whitespace().skip(1).take(8).map(|word| word.parse().ok()).collect()
        };
        let times = numbers(machine.lines().next()?).filter(|times| times.len() == 8)?;
        let cpus = machine.lines().skip(1).take_while(|line| line.starts_with("cpu")).count() as u64;
        let all: u64 = times.iter().sum();
        Some(Self { busy: all - times[3] - times[4], all, own: process.with_children(), cpus })
    }

    fn since(&self, before: &Self) -> Option<f64> {
        let wall = self.all.checked_sub(before.all)? as f64 / self.cpus.max(1) as f64;
        let elsewhere =
            (self.busy.checked_sub(before.busy)?).saturating_sub(self.own.checked_sub(before.own)?);
        (wall > 0.0).then(|| elsewhere as f64 / wall)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_take_is_what_is_left_of_the_busy_time() {
        let machine = |user, idle| format!("cpu {user} 10 20 {idle} 5 1 2 3 0 0\ncpu0 1\ncpu1 1\nintr 7\n");
        let process = |own| format!("77 (a) b) S 1 2 3 4 5 6 7 8 9 10 {own} 2 30 4 20 0 1\n");
        let parse = |machine: &str, own: &str| Counters::parse(machine, &process::Counters::parse(own)?);
        let before = parse(&machine(100, 1000), &process(50)).unwrap();
        assert_eq!(before, Counters { busy: 136, all: 1141, own: 86, cpus: 2 });
        // Two seconds of two CPUs at 100 ticks give 400 ticks. Of these, 300 were busy and 250 belong to this
        // process: 50 ticks in 200, a quarter of a core.
        let after = parse(&machine(400, 1100), &process(300)).unwrap();
        assert_eq!(after.since(&before), Some(0.25));
        assert_eq!(before.since(&before), None);
        for (machine, process) in [("", ""), ("cpu 1 2", "1 (x) S 1"), ("cpu a b c d e f g h\n", "")] {
            assert_eq!(parse(machine, process), None);
        }
    }
}
