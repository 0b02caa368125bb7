//! Counters of a process and its machine over a short time.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use build_info::Host;
use host::process::{ProcFolder, TICKS_PER_SECOND, ThreadReading, Throttling};

use crate::observation::{Neighbour, ObservedMemory, ThreadFacts};

/// Minimum CPU use of another process, in cores, for its entry in the observation.
const LEAST: f64 = 0.05;

/// Running observation of one process.
pub struct ProcessWatch {
    root: PathBuf,
    pid: u32,
    begun: Instant,
    before: Readings,
    /// Number of samples, and of samples in which the thread waited for a disk, per thread.
    states: BTreeMap<u32, (u32, u32)>,
}

/// Result of an observation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Window {
    /// Process ID.
    pub pid: u32,
    /// Length in seconds.
    pub seconds: f64,
    /// Threads of the process.
    pub threads: Vec<ThreadFacts>,
    /// Memory of the process at the end.
    pub memory: ObservedMemory,
    /// Share of the CPU quota's periods in which the process was throttled.
    pub throttled: Option<f64>,
    /// Share of the machine's CPU time that was stolen.
    pub stolen: Option<f64>,
    /// Number of times that heat throttled a CPU.
    pub heat_events: u64,
    /// Other processes, with the CPU that each ran on last.
    pub(super) others: Vec<(Neighbour, u32)>,
    /// Readings that failed.
    pub unread: Vec<String>,
}

/// Counters at one moment.
struct Readings {
    threads: BTreeMap<u32, ThreadReading>,
    major_faults: Option<u64>,
    read_bytes: Option<u64>,
    /// Bytes that the process has read from all files.
    all_read_bytes: Option<u64>,
    /// Resident memory in bytes.
    resident: Option<u64>,
    throttling: Throttling,
    /// CPU ticks of the machine: all, and stolen.
    machine: Option<(u64, u64)>,
    heat_events: u64,
    /// CPU ticks of every process.
    processes: BTreeMap<u32, u64>,
}

impl Readings {
    fn read(root: &Path, pid: u32) -> Option<Self> {
        let folder = ProcFolder::below(root, &pid.to_string());
        let threads: BTreeMap<u32, ThreadReading> =
            folder.thread_readings().into_iter().map(|thread| (thread.tid, thread)).collect();
        if threads.is_empty() {
            return None;
        }
        let ticks = |(pid, folder): (u32, ProcFolder)| {
            let counters = folder.counters()?;
            Some((pid, counters.user.saturating_add(counters.system)))
        };
        Some(Self {
            threads,
            major_faults: folder.counters().map(|counters| counters.major_faults),
            read_bytes: io(&folder, "read_bytes:"),
            all_read_bytes: io(&folder, "rchar:"),
            resident: folder.memory().map(|memory| memory.resident.0),
            throttling: Throttling::read(root, &pid.to_string()),
            machine: machine_ticks(root),
            heat_events: super::machine::heat_events(root),
            processes: ProcFolder::all(root).into_iter().filter_map(ticks).collect(),
        })
    }
}

/// Returns a counter of `/proc/PID/io`: `read_bytes:` counts reads from disks, and `rchar:` counts all reads.
fn io(folder: &ProcFolder, name: &str) -> Option<u64> {
    let text = std::fs::read_to_string(folder.path().join("io")).ok()?;
    text.lines().find_map(|line| line.strip_prefix(name))?.trim().parse().ok()
}

/// Returns the ticks of all CPUs in `/proc/stat`: the sum of the first eight columns, and the eighth, `steal`.
fn machine_ticks(root: &Path) -> Option<(u64, u64)> {
    let text = std::fs::read_to_string(root.join("proc/stat")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Vec<u64> = line.split_whitespace().take(8).map_while(|word| word.parse().ok()).collect();
    Some((ticks.iter().fold(0, |sum, ticks| sum.saturating_add(*ticks)), *ticks.get(7)?))
}

impl ProcessWatch {
    /// Begins the observation of process `pid` on the machine whose files are below `root`. `None` if the process has
    /// ended.
    pub fn begin(root: &Path, pid: u32) -> Option<Self> {
        let before = Readings::read(root, pid)?;
        Some(Self { root: root.to_path_buf(), pid, begun: Instant::now(), before, states: BTreeMap::new() })
    }

    /// Samples the states of the threads. Call it about every 50 ms.
    pub fn sample(&mut self) {
        let folder = ProcFolder::below(&self.root, &self.pid.to_string());
        for thread in folder.thread_readings() {
            let (all, blocked) = self.states.entry(thread.tid).or_default();
            *all += 1;
            *blocked += u32::from(thread.state == 'D');
        }
    }

    /// Samples the process until `is_over` returns true.
    pub fn sample_until(&mut self, mut is_over: impl FnMut(Duration) -> bool) {
        const STEP: Duration = Duration::from_millis(50);
        while !is_over(self.begun.elapsed()) {
            std::thread::sleep(STEP);
            self.sample();
        }
    }

    /// Ends the observation. `None` if the process has ended meanwhile.
    pub fn end(self) -> Option<Window> {
        let seconds = self.begun.elapsed().as_secs_f64();
        self.end_after(seconds)
    }

    /// Ends the observation, which took `seconds`.
    fn end_after(self, seconds: f64) -> Option<Window> {
        let after = Readings::read(&self.root, self.pid)?;
        let before = &self.before;
        let seconds = seconds.max(1e-3);
        let gained = |now: Option<u64>, then: Option<u64>| Some(now?.saturating_sub(then?) as f64 / seconds);
        let threads = after.threads.values().map(|now| self.thread(now, seconds)).collect();
        let folder = ProcFolder::below(&self.root, &self.pid.to_string());
        let mut unread = Vec::new();
        let memory = folder.memory().map(ObservedMemory::from).unwrap_or_else(|| {
            unread.push(format!("the memory of process {}", self.pid));
            ObservedMemory::default()
        });
        let memory = ObservedMemory {
            major_faults_per_s: gained(after.major_faults, before.major_faults).unwrap_or(0.0),
            read_bytes_per_s: gained(after.read_bytes, before.read_bytes),
            // A long read counts only when it ends, but its buffer grows meanwhile. The pages of a mapped file are not
            // read, but become resident.
            file_bytes_per_s: gained(after.all_read_bytes, before.all_read_bytes)
                .zip(gained(after.resident, before.resident))
                .map(|(read, grown)| read.max(grown)),
            ..memory
        };
        let stolen = after.machine.zip(before.machine).and_then(|(now, then)| {
            let all = now.0.saturating_sub(then.0);
            (all > 0).then(|| now.1.saturating_sub(then.1) as f64 / all as f64)
        });
        Some(Window {
            pid: self.pid,
            seconds,
            threads,
            memory,
            throttled: after.throttling.share_since(&before.throttling),
            stolen,
            heat_events: after.heat_events.saturating_sub(before.heat_events),
            others: self.others(&after, seconds),
            unread,
        })
    }

    fn thread(&self, now: &ThreadReading, seconds: f64) -> ThreadFacts {
        // The counters of a new thread start at zero.
        let then = self.before.threads.get(&now.tid);
        let share = |now: Option<Duration>, then: Option<Duration>| {
            Some((now?.saturating_sub(then.unwrap_or_default()).as_secs_f64() / seconds).min(1.0))
        };
        let ticks =
            now.ticks.saturating_sub(then.map_or(0, |then| then.ticks)) as f64 / TICKS_PER_SECOND / seconds;
        let (all, blocked) = self.states.get(&now.tid).copied().unwrap_or_default();
        ThreadFacts {
            tid: now.tid,
            busy: share(now.ran, then.and_then(|then| then.ran)).unwrap_or(ticks.min(1.0)),
            waited: share(now.waited, then.and_then(|then| then.waited)),
            blocked: f64::from(blocked) / f64::from(all.max(1)),
            cpu: now.cpu,
            nice: now.nice,
            policy: now.policy,
        }
    }

    /// Returns the other processes that used CPUs, the busiest first, with the CPU that each ran on last.
    fn others(&self, after: &Readings, seconds: f64) -> Vec<(Neighbour, u32)> {
        let own = std::process::id();
        let mut found: Vec<(Neighbour, u32)> = after
            .processes
            .iter()
            .filter(|(pid, _)| **pid != self.pid && **pid != own)
            .filter_map(|(pid, ticks)| {
                let then = self.before.processes.get(pid).copied().unwrap_or(0);
                let cores = ticks.saturating_sub(then) as f64 / TICKS_PER_SECOND / seconds;
                let folder = ProcFolder::below(&self.root, &pid.to_string());
                (cores >= LEAST).then_some(())?;
                let cpu = folder.thread_readings().into_iter().max_by_key(|thread| thread.ticks)?.cpu;
                Some((Neighbour { pid: *pid, name: folder.name()?, cores }, cpu))
            })
            .collect();
        found.sort_by(|(one, _), (other, _)| other.cores.total_cmp(&one.cores));
        found
    }
}

impl Window {
    /// Returns the processes that ran on CPUs that the limits in `host` allow.
    pub(super) fn neighbours_on(&self, host: &Host) -> Vec<Neighbour> {
        let affinity = &host.limits.affinity;
        let shares = |cpu: u32| affinity.is_empty() || affinity.contains(&cpu);
        self.others.iter().filter(|(_, cpu)| shares(*cpu)).map(|(neighbour, _)| neighbour.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fake(base::TempDir);

    impl Fake {
        fn write(&self, path: &str, text: &str) {
            let path = self.0.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }

        /// Writes the counters of one moment.
        fn set(&self, state: char, ticks: u64, nanos: u64, faults: u64) {
            let stat = |pid: u32, name: &str, ticks: u64| {
                format!(
                    "{pid} ({name}) {state} 1 1 1 0 -1 0 0 0 {faults} 0 {ticks} 0 0 0 20 0 1 0 1 {} 17 1 0 0 0",
                    ["0"; 15].join(" ")
                )
            };
            self.write("proc/7/stat", &stat(7, "server", ticks));
            self.write("proc/7/comm", "server\n");
            self.write("proc/7/task/7/stat", &stat(7, "server", ticks));
            self.write("proc/7/task/7/schedstat", &format!("{nanos} {} 1\n", nanos / 2));
            self.write("proc/7/status", &format!("VmRSS: {ticks} kB\nVmSwap: 8 kB\n"));
            self.write("proc/7/io", &format!("rchar: {ticks}\nread_bytes: {}\n", faults * 4096));
            self.write("proc/8/stat", &stat(8, "other", ticks * 2));
            self.write("proc/8/task/8/stat", &stat(8, "other", ticks * 2));
            self.write("proc/8/comm", "other\n");
            self.write("proc/stat", &format!("cpu  {ticks} 0 0 {ticks} 0 0 0 {}\n", ticks / 2));
        }
    }

    #[test]
    fn rates_are_differences_per_second() {
        let fake = Fake(base::scratch("watch").unwrap());
        assert!(ProcessWatch::begin(fake.0.path(), 7).is_none());
        fake.set('R', 100, 1_000_000_000, 10);
        let mut watch = ProcessWatch::begin(fake.0.path(), 7).unwrap();
        watch.sample();
        fake.set('D', 200, 2_000_000_000, 110);
        watch.sample();
        let window = watch.end_after(2.0).unwrap();
        let thread =
            ThreadFacts { tid: 7, busy: 0.5, waited: Some(0.25), blocked: 0.5, cpu: 1, nice: 0, policy: 0 };
        assert_eq!(window.threads, [thread]);
        let memory = window.memory;
        assert_eq!((memory.major_faults_per_s, memory.read_bytes_per_s), (50.0, Some(204_800.0)));
        assert_eq!(memory.file_bytes_per_s, Some(50.0 * 1024.0));
        assert_eq!(window.stolen, Some(0.2));
        let mut host = Host::default();
        let other = Neighbour { pid: 8, name: "other".to_string(), cores: 1.0 };
        assert_eq!(window.neighbours_on(&host), [other]);
        host.limits.affinity = vec![0];
        assert_eq!(window.neighbours_on(&host), []);
    }
}
