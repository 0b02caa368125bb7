//! Conditions on this machine that make a measurement unreliable.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use host::process::{self, Throttling};
use serde::{Deserialize, Serialize};

/// Time during which other processes are observed.
const LOOK: Duration = Duration::from_millis(200);

/// Fraction of a CPU that another process may use without being reported.
const SHARE: f64 = 0.05;

/// Condition that readers of the results should know about.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "what")]
pub enum Condition {
    /// The CPU frequency governor may lower the clock.
    Governor {
        /// Name of the governor, for example `powersave`.
        governor: String,
        /// Number of CPUs with this governor.
        cpus: usize,
    },
    /// Another process uses the CPU.
    Busy {
        /// Process ID.
        pid: u32,
        /// Name of the process.
        name: String,
        /// Number of CPUs that the process uses.
        cpus: f64,
    },
    /// The CPU quota throttled this process.
    Throttled {
        /// Number of throttled periods.
        periods: u64,
    },
}

impl std::fmt::Display for Condition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Condition::Governor { governor, cpus } => write!(
                f,
                "{cpus} CPUs run under the governor {governor}, so their clock follows the load and \
                 short runs are slow\nhint: as root, run `cpupower frequency-set -g performance`"
            ),
            Condition::Busy { pid, name, cpus } => {
                write!(
                    f,
                    "{name} (process {pid}) uses {cpus:.1} CPUs\nhint: stop it, or expect wide intervals"
                )
            }
            Condition::Throttled { periods } => write!(
                f,
                "the CPU quota throttled this process in {periods} periods\nhint: use fewer threads, \
                 or raise the quota"
            ),
        }
    }
}

/// Observes the machine for a fifth of a second, while this process is idle.
pub fn look() -> Vec<Condition> {
    let root = Path::new("/");
    let mut conditions = governors(root);
    let before = process::all();
    std::thread::sleep(LOOK);
    conditions.extend(busy(&before, &process::all(), LOOK));
    conditions
}

/// Returns a condition if the quota has throttled this process since `before`.
pub fn throttled(before: &Throttling) -> Option<Condition> {
    let periods = Throttling::read(Path::new("/"), "self").since(before)?;
    (periods > 0).then_some(Condition::Throttled { periods })
}

/// Returns the CPUs whose governor is not `performance`. Returns an empty list for a machine that does not control its
/// clock, such as a virtual machine.
fn governors(root: &Path) -> Vec<Condition> {
    let mut others: BTreeMap<String, usize> = BTreeMap::new();
    for cpu in fs::read_dir(root.join("sys/devices/system/cpu")).into_iter().flatten().flatten() {
        let Ok(governor) = fs::read_to_string(cpu.path().join("cpufreq/scaling_governor")) else { continue };
        if governor.trim() != "performance" {
            *others.entry(governor.trim().to_string()).or_default() += 1;
        }
    }
    others.into_iter().map(|(governor, cpus)| Condition::Governor { governor, cpus }).collect()
}

/// Returns the processes that used the CPU between two snapshots, the busiest first, except this process.
fn busy(
    before: &BTreeMap<u32, (String, f64)>,
    after: &BTreeMap<u32, (String, f64)>,
    time: Duration,
) -> Vec<Condition> {
    let taken = |(pid, (name, seconds)): (&u32, &(String, f64))| {
        let (_, then) = before.get(pid)?;
        let cpus = (seconds - then) / time.as_secs_f64();
        // The kernel counts CPU time in ticks, so more digits would have no meaning.
        let cpus = (cpus * 100.0).round() / 100.0;
        (cpus > SHARE && *pid != std::process::id()).then(|| (*pid, name.clone(), cpus))
    };
    let mut taken: Vec<(u32, String, f64)> = after.iter().filter_map(taken).collect();
    taken.sort_by(|a, b| b.2.total_cmp(&a.2));
    taken.into_iter().take(3).map(|(pid, name, cpus)| Condition::Busy { pid, name, cpus }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn governors_other_than_performance_are_counted() {
        let root = tempfile::tempdir().unwrap();
        for (cpu, governor) in [("cpu0", "powersave"), ("cpu1", "performance"), ("cpu2", "powersave")] {
            let folder = root.path().join("sys/devices/system/cpu").join(cpu).join("cpufreq");
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("scaling_governor"), format!("{governor}\n")).unwrap();
        }
        let found = governors(root.path());
        assert_eq!(found, [Condition::Governor { governor: "powersave".to_string(), cpus: 2 }]);
        assert!(found[0].to_string().starts_with("2 CPUs run under the governor powersave"));
        assert!(governors(Path::new("/nonexistent")).is_empty());
    }

    #[test]
    fn the_busiest_of_the_others_are_named() {
        let table = |rows: &[(u32, &str, u64)]| -> BTreeMap<u32, (String, f64)> {
            rows.iter().map(|(pid, name, ticks)| (*pid, (name.to_string(), *ticks as f64 / 100.0))).collect()
        };
        let own = std::process::id();
        let before = table(&[(1, "init", 5), (20, "cc", 100), (21, "sleepy", 7), (own, "us", 0)]);
        let after =
            table(&[(1, "init", 5), (20, "cc", 115), (21, "sleepy", 8), (22, "new", 9), (own, "us", 20)]);
        let found = busy(&before, &after, Duration::from_millis(200));
        assert_eq!(found, [Condition::Busy { pid: 20, name: "cc".to_string(), cpus: 0.75 },]);
    }
}
