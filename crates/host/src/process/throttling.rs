//! Throttling by CPU quotas: `nr_throttled` of a process's control group and of all groups above it.

use std::fs;
use std::path::{Path, PathBuf};

/// Counters of the control groups of a process, from its own up to the root.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Throttling {
    counters: Vec<u64>,
}

impl Throttling {
    /// Reads the counters of `process`, a number or `self`. Empty if the process has no control groups or its groups
    /// report no counters.
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
        Self { counters: counters.filter_map(|folder| throttled(&folder.join("cpu.stat"))).collect() }
    }

    /// Returns the total number of throttled periods of the most throttled group; `None` if no group reports a
    /// number.
    pub fn total(&self) -> Option<u64> {
        self.counters.iter().copied().max()
    }

    /// Returns the number of throttled periods since `before`, of the most throttled group.
    pub fn since(&self, before: &Self) -> Option<u64> {
        if self.counters.len() != before.counters.len() {
            return None;
        }
        self.counters.iter().zip(&before.counters).map(|(now, then)| now.saturating_sub(*then)).max()
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

fn throttled(file: &Path) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| line.strip_prefix("nr_throttled "))?.trim().parse().ok()
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
            let set = |counts: [u64; 2]| {
                for (folder, count) in folders.iter().zip(counts) {
                    write(&format!("{folder}/cpu.stat"), &format!("nr_periods 10\nnr_throttled {count}\n"));
                }
                Throttling::read(root.path(), "self")
            };
            let before = set([1, 1]);
            assert_eq!(before.total(), Some(1), "{cgroup}");
            assert_eq!(set([2, 5]).since(&before), Some(if folders.len() > 1 { 4 } else { 1 }), "{cgroup}");
            folders
                .iter()
                .for_each(|folder| fs::remove_file(root.path().join(folder).join("cpu.stat")).unwrap());
        }
        assert_eq!(Throttling::default().since(&Throttling::default()), None);
    }
}
