//! Throttling by CPU quotas: `nr_throttled` of a process's control group and of all groups above it.

use std::fs;
use std::path::{Path, PathBuf};

/// Counters of the control groups of a process, from the process's own group up to the root.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Throttling {
    counters: Vec<Periods>,
}

/// Periods of one control group's CPU quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Periods {
    /// Number of periods in which the group ran.
    all: u64,
    /// Number of periods in which the group was throttled.
    throttled: u64,
}

impl Throttling {
    /// Reads the counters of `process`, a process ID or `self`. Empty if the process has no control groups or its
    /// groups report no counters.
    pub fn read(root: &Path, process: &str) -> Self {
        let cgroup = root.join("proc").join(process).join("cgroup");
        let Ok(text) = fs::read_to_string(cgroup) else { return Self::default() };
        let counters = text.lines().filter_map(|line| group(root, line)).flat_map(|(mount, path)| {
            let mut folders = Vec::new();
            let mut folder = Some(path.as_path());
            while let Some(path) = folder {
                folders.push(mount.join(path));
                folder = path.parent();
            }
            folders
        });
        Self { counters: counters.filter_map(|folder| periods(&folder.join("cpu.stat"))).collect() }
    }

    /// Returns the total number of throttled periods of the most throttled group; `None` if no group reports a
    /// number.
    pub fn total(&self) -> Option<u64> {
        self.counters.iter().map(|periods| periods.throttled).max()
    }

    /// Returns the number of throttled periods since `before`, of the most throttled group.
    pub fn since(&self, before: &Self) -> Option<u64> {
        self.changes(before)?.map(|periods| periods.throttled).max()
    }

    /// Returns the share of the periods since `before` in which the most throttled group was throttled, from 0 to 1.
    /// `None` if no group reports periods, or if no period began since `before`.
    pub fn share_since(&self, before: &Self) -> Option<f64> {
        let ran = self.changes(before)?.filter(|periods| periods.all > 0);
        ran.map(|periods| (periods.throttled as f64 / periods.all as f64).min(1.0)).max_by(f64::total_cmp)
    }

    /// Returns the periods of each group since `before`; `None` if the groups are not the same.
    fn changes<'a>(&'a self, before: &'a Self) -> Option<impl Iterator<Item = Periods> + 'a> {
        let pairs = (self.counters.len() == before.counters.len())
            .then(|| self.counters.iter().zip(&before.counters))?;
        Some(pairs.map(|(now, then)| Periods {
            all: now.all.saturating_sub(then.all),
            throttled: now.throttled.saturating_sub(then.throttled),
        }))
    }
}

/// Parses a line of /proc/PID/cgroup (cgroups(7)) that concerns CPU time, and returns the mount point and the path.
/// Version 2 writes `0::/path`, version 1 `4:cpu,cpuacct:/path`.
fn group(root: &Path, line: &str) -> Option<(PathBuf, PathBuf)> {
    let mut parts = line.splitn(3, ':');
    let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
    let base = root.join("sys/fs/cgroup");
    let mount = match controllers {
        "" if base.join("unified").is_dir() => base.join("unified"),
        "" => base,
        names if names.split(',').any(|name| name == "cpu") => base.join(names),
        _ => return None,
    };
    // A path with .. belongs to a group outside this process's namespace. Only the namespace's root is visible.
    let path = path.trim_start_matches('/');
    let seen = if path.split('/').any(|part| part == "..") { "" } else { path };
    Some((mount, PathBuf::from(seen)))
}

fn periods(file: &Path) -> Option<Periods> {
    let text = fs::read_to_string(file).ok()?;
    let number = |name: &str| text.lines().find_map(|line| line.strip_prefix(name))?.trim().parse().ok();
    Some(Periods { all: number("nr_periods ").unwrap_or(0), throttled: number("nr_throttled ")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_that_was_held_back_most_counts() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let cases: [(&str, &[&str]); 3] = [
            ("0::/a/b\n", &["sys/fs/cgroup/a/b", "sys/fs/cgroup/a"]),
            ("4:cpu,cpuacct:/a\n1:name=systemd:/\n", &["sys/fs/cgroup/cpu,cpuacct/a"]),
            ("0::/../outside\n", &["sys/fs/cgroup"]),
        ];
        for (cgroup, folders) in cases {
            write("proc/self/cgroup", cgroup);
            let set = |periods: u64, counts: [u64; 2]| {
                for (folder, count) in folders.iter().zip(counts) {
                    let text = format!("nr_periods {periods}\nnr_throttled {count}\n");
                    write(&format!("{folder}/cpu.stat"), &text);
                }
                Throttling::read(root.path(), "self")
            };
            let (before, after) = (set(10, [1, 1]), set(18, [2, 5]));
            assert_eq!(before.total(), Some(1), "{cgroup}");
            let most = if folders.len() > 1 { 4 } else { 1 };
            assert_eq!(after.since(&before), Some(most), "{cgroup}");
            assert_eq!(after.share_since(&before), Some(most as f64 / 8.0), "{cgroup}");
            assert_eq!(after.share_since(&after), None, "no period has passed");
            folders
                .iter()
                .for_each(|folder| fs::remove_file(root.path().join(folder).join("cpu.stat")).unwrap());
        }
        assert_eq!(Throttling::default().since(&Throttling::default()), None);
    }
}
