//! Resource usage of a process during a measurement: CPU time, context switches, page faults and memory. Figures of
//! the machine and of the process's control group are included. The figures come from /proc and /sys, so that they
//! are also available for child processes. GPU figures come from the NVIDIA driver.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use host::process::{Counters, ProcFolder, TICKS_PER_SECOND, Throttling};
use serde::{Deserialize, Serialize};

use crate::gpu::{GpuUse, GpuWatch};

/// Resources used between two readings. Figures that the system does not report are absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// Time between the readings, in seconds.
    pub seconds: f64,
    /// CPU time in user mode, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_user: Option<f64>,
    /// CPU time in the kernel on behalf of the process, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_system: Option<f64>,
    /// Number of voluntary context switches: a thread waited for an event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub voluntary_switches: Option<u64>,
    /// Number of involuntary context switches: a thread lost its CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub involuntary_switches: Option<u64>,
    /// Number of minor page faults, served from memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub minor_faults: Option<u64>,
    /// Number of major page faults, served from a disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub major_faults: Option<u64>,
    /// Peak resident memory since the start of the process, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_memory: Option<u64>,
    /// Fraction of the time that each online CPU was busy, with any process.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cores: Vec<f64>,
    /// Number of periods in which a CPU quota throttled this control group or an ancestor group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub throttled_periods: Option<u64>,
    /// Energy of all CPU packages, in joules; `None` if RAPL cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub joules: Option<f64>,
    /// Use of each NVIDIA GPU that CUDA shows, by all processes. Empty without GPUs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<GpuUse>,
}

impl Usage {
    /// Returns the average number of CPUs that the process kept busy.
    pub fn cpus(&self) -> Option<f64> {
        let cpu = self.cpu_user? + self.cpu_system?;
        (self.seconds > 0.0).then(|| cpu / self.seconds)
    }
}

/// Measurement of resource usage since creation. A reading takes some tenths of a millisecond.
#[derive(Debug)]
pub struct UsageWatch {
    root: PathBuf,
    process: String,
    started: Instant,
    first: Reading,
    gpus: Option<GpuWatch>,
}

impl UsageWatch {
    /// Starts measuring this process.
    pub fn this_process() -> Self {
        Self::of("self".to_string(), Path::new("/"), GpuWatch::start())
    }

    /// Starts measuring the running process `pid`. For a child that was just started, the usage includes the child's
    /// earlier usage.
    pub fn process(pid: u32) -> Self {
        Self::of(pid.to_string(), Path::new("/"), GpuWatch::start())
    }

    /// Starts measuring the process `pid`, with an existing watch of the GPUs.
    pub fn process_beside(pid: u32, gpus: Option<GpuWatch>) -> Self {
        Self::of(pid.to_string(), Path::new("/"), gpus)
    }

    fn of(process: String, root: &Path, gpus: Option<GpuWatch>) -> Self {
        let first = Reading::take(root, &process);
        Self { root: root.to_path_buf(), process, started: Instant::now(), first, gpus }
    }

    /// Returns the usage since the start. For a process that has ended, only figures of the machine are available, so
    /// call this function before the process ends.
    pub fn read(&self) -> Usage {
        let now = Reading::take(&self.root, &self.process);
        let mut usage = now.since(&self.first);
        usage.seconds = self.started.elapsed().as_secs_f64();
        usage.gpus = self.gpus.as_ref().map(GpuWatch::read).unwrap_or_default();
        usage
    }
}

#[derive(Clone, Debug, Default)]
struct Reading {
    counters: Option<Counters>,
    switches: Option<(u64, u64)>,
    peak: Option<u64>,
    cores: Vec<(u64, u64)>,
    throttling: Throttling,
    energy: Vec<Energy>,
}

/// Energy counter of one package in microjoules, and the value at which it wraps around.
#[derive(Clone, Copy, Debug)]
struct Energy {
    microjoules: u64,
    range: u64,
}

impl Reading {
    fn take(root: &Path, process: &str) -> Self {
        let folder = ProcFolder::below(root, process);
        Self {
            counters: folder.counters(),
            switches: folder.switches(),
            peak: folder.peak_resident(),
            cores: fs::read_to_string(root.join("proc/stat")).map(|text| cores(&text)).unwrap_or_default(),
            throttling: Throttling::read(root, process),
            energy: energy(&root.join("sys/class/powercap")),
        }
    }

    fn since(&self, before: &Self) -> Usage {
        let both = self.counters.zip(before.counters);
        let count =
            |pick: fn(&Counters) -> u64| both.map(|(now, then)| pick(&now).saturating_sub(pick(&then)));
        let seconds = |pick| count(pick).map(|ticks| ticks as f64 / TICKS_PER_SECOND);
        let switches = self.switches.zip(before.switches);
        Usage {
            seconds: 0.0,
            cpu_user: seconds(|counters| counters.user),
            cpu_system: seconds(|counters| counters.system),
            voluntary_switches: switches.map(|(now, then)| now.0.saturating_sub(then.0)),
            involuntary_switches: switches.map(|(now, then)| now.1.saturating_sub(then.1)),
            minor_faults: count(|counters| counters.minor_faults),
            major_faults: count(|counters| counters.major_faults),
            peak_memory: self.peak,
            cores: shares(&before.cores, &self.cores),
            throttled_periods: self.throttling.since(&before.throttling),
            joules: joules(&self.energy, &before.energy),
            gpus: Vec::new(),
        }
    }
}

/// Parses the busy and total ticks of each CPU (proc_stat(5)).
pub(crate) fn cores(text: &str) -> Vec<(u64, u64)> {
    let lines = text.lines().skip(1).take_while(|line| line.starts_with("cpu"));
    lines
        .filter_map(|line| {
            let times: Vec<u64> =
                line.split_whitespace().skip(1).take(8).filter_map(|word| word.parse().ok()).collect();
            let all = times.iter().sum::<u64>();
            (times.len() == 8).then(|| (all - times[3] - times[4], all))
        })
        .collect()
}

/// Returns the fraction of the time between two readings that each CPU was busy; empty if the number of CPUs changed.
pub(crate) fn shares(before: &[(u64, u64)], now: &[(u64, u64)]) -> Vec<f64> {
    if before.len() != now.len() {
        return Vec::new();
    }
    let share = |(now, then): (&(u64, u64), &(u64, u64))| {
        let all = now.1.saturating_sub(then.1);
        if all == 0 { 0.0 } else { now.0.saturating_sub(then.0) as f64 / all as f64 }
    };
    now.iter().zip(before).map(share).collect()
}

/// Reads the energy counters `intel-rapl:N`, one per package; AMD's driver uses the same name. `intel-rapl:N:M` are
/// parts of a package and are skipped.
fn energy(folder: &Path) -> Vec<Energy> {
    let mut packages: Vec<PathBuf> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.to_string_lossy().matches(':').count() == 1)
        .collect();
    packages.sort();
    let number = |path: PathBuf| fs::read_to_string(path).ok()?.trim().parse().ok();
    packages
        .iter()
        .filter_map(|path| {
            let microjoules = number(path.join("energy_uj"))?;
            Some(Energy { microjoules, range: number(path.join("max_energy_range_uj")).unwrap_or(u64::MAX) })
        })
        .collect()
}

fn joules(now: &[Energy], before: &[Energy]) -> Option<f64> {
    if now.is_empty() || now.len() != before.len() {
        return None;
    }
    let used =
        now.iter().zip(before).map(|(now, then)| match now.microjoules.checked_sub(then.microjoules) {
            Some(used) => used,
            // The counter has wrapped around.
            None => now.microjoules.saturating_add(now.range.saturating_sub(then.microjoules)),
        });
    Some(used.sum::<u64>() as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a fake machine from files.
    fn machine(folder: &Path, ticks: u64, switches: u64, energy: u64, throttled: u64) {
        let write = |path: &str, text: String| {
            let path = folder.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let idle = 1000 - ticks;
        write(
            "proc/stat",
            format!("cpu 0\ncpu0 {ticks} 0 0 {idle} 0 0 0 0\ncpu1 0 0 0 1000 0 0 0 0\nintr 1\n"),
        );
        write("proc/7/stat", format!("7 (a b) c) S 1 1 1 1 1 1 {switches} 0 3 0 {ticks} 20 0 0 20 0 1"));
        write("proc/7/status", "VmHWM:\t  2048 kB\nThreads: 2\n".to_string());
        for task in ["7", "8"] {
            let text = format!("voluntary_ctxt_switches:\t{switches}\nnonvoluntary_ctxt_switches:\t5\n");
            write(&format!("proc/7/task/{task}/status"), text);
        }
        write("proc/7/cgroup", "0::/a/b\n".to_string());
        write("sys/fs/cgroup/a/cpu.stat", format!("usage_usec 1\nnr_periods 9\nnr_throttled {throttled}\n"));
        write("sys/class/powercap/intel-rapl:0/energy_uj", format!("{energy}\n"));
        write("sys/class/powercap/intel-rapl:0/max_energy_range_uj", "5000000\n".to_string());
        write("sys/class/powercap/intel-rapl:0:0/energy_uj", "77\n".to_string());
    }

    #[test]
    fn what_was_used_is_the_difference_of_two_readings() {
        let folder = tempfile::tempdir().unwrap();
        machine(folder.path(), 100, 10, 4_000_000, 3);
        let watch = UsageWatch::of("7".to_string(), folder.path(), None);
        machine(folder.path(), 300, 25, 1_000_000, 5);
        let usage = watch.read();
        assert_eq!((usage.cpu_user, usage.cpu_system), (Some(2.0), Some(0.0)));
        assert_eq!((usage.voluntary_switches, usage.involuntary_switches), (Some(30), Some(0)));
        assert_eq!((usage.minor_faults, usage.major_faults), (Some(15), Some(0)));
        assert_eq!(usage.peak_memory, Some(2 << 20));
        // The CPUs have the same ticks in both readings, so no time has passed.
        assert_eq!(usage.cores, [0.0, 0.0]);
        assert_eq!(usage.throttled_periods, Some(2));
        // The counter wrapped around at 5 J: 1 J before and 1 J after.
        assert_eq!(usage.joules, Some(2.0));
    }

    #[test]
    fn a_machine_that_tells_nothing_is_no_error() {
        let folder = tempfile::tempdir().unwrap();
        let usage = UsageWatch::of("7".to_string(), folder.path(), None).read();
        assert_eq!(Usage { seconds: 0.0, ..usage }, Usage::default());
    }

    #[test]
    fn this_process_uses_a_cpu() {
        let watch = UsageWatch::this_process();
        let started = Instant::now();
        let mut sum = 0u64;
        while started.elapsed().as_millis() < 100 {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        let usage = watch.read();
        // On a loaded machine, the process may have used only a part of a CPU, but never more CPUs than the machine
        // has.
        assert!(usage.cpu_user.is_some_and(|seconds| seconds >= 0.01), "{usage:?}");
        assert!(usage.peak_memory.is_some_and(|bytes| bytes > 1 << 20), "{usage:?}");
        assert!(usage.cpus().is_some_and(|cpus| cpus > 0.0), "{usage:?}");
    }
}
