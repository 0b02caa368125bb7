//! CPU quota and memory limits of a process's control groups, version 1 and 2: the tightest limit among its own group
//! and all groups above it.

use std::path::{Component, Path};

use build_info::Bytes;

use crate::root::Root;

/// Tightest limits found.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct CgroupLimits {
    /// CPU quota in cores.
    pub cpu_quota: Option<f64>,
    /// Memory limit in bytes.
    pub memory: Option<Bytes>,
    /// Size in bytes above which the kernel slows the group down and reclaims its memory (`memory.high`, version 2).
    pub memory_high: Option<Bytes>,
}

/// Mounted control group hierarchy.
struct Mount {
    /// Mounted group, as this process's cgroup namespace sees it: `/`, or `/docker/ab…`, or `/../..` for a group
    /// above the namespace.
    group: String,
    /// Mount point.
    point: String,
    /// Controllers of a version 1 hierarchy; `None` for version 2.
    controllers: Option<Vec<String>>,
}

/// Returns the limits of `process`, a process ID or `self`. The kernel writes the names of another process's groups as
/// this process's namespace sees them, so that this process's mounts apply.
pub(crate) fn limits(root: &Root, process: &str, warnings: &mut Vec<String>) -> CgroupLimits {
    let mut limits = CgroupLimits::default();
    let Some(groups) = root.read(&format!("/proc/{process}/cgroup")) else { return limits };
    let mounts = mounts(&root.read("/proc/self/mountinfo").unwrap_or_default());
    for line in groups.lines() {
        // `4:cpu,cpuacct:/path`, and `0::/path` for version 2.
        let mut fields = line.splitn(3, ':');
        let (Some(id), Some(controllers), Some(group)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        if id == "0" && controllers.is_empty() {
            let matching = mounts.iter().filter(|mount| mount.controllers.is_none());
            walk(matching, group, "unified", warnings, |folder, warnings| {
                limits.take_cpu(version_2_quota(root, folder, warnings));
                limits.take_memory(memory(root, &format!("{folder}/memory.max"), warnings));
                let high = memory(root, &format!("{folder}/memory.high"), warnings);
                limits.memory_high = tighter(limits.memory_high, high);
            });
            continue;
        }
        for controller in controllers.split(',').filter(|name| matches!(*name, "cpu" | "memory")) {
            let has = |mount: &&Mount| {
                mount.controllers.as_ref().is_some_and(|names| names.iter().any(|name| name == controller))
            };
            walk(mounts.iter().filter(has), group, controller, warnings, |folder, warnings| {
                if controller == "cpu" {
                    limits.take_cpu(version_1_quota(root, folder, warnings));
                } else {
                    limits.take_memory(memory(root, &format!("{folder}/memory.limit_in_bytes"), warnings));
                }
            });
        }
    }
    limits
}

impl CgroupLimits {
    fn take_cpu(&mut self, quota: Option<f64>) {
        self.cpu_quota = match (self.cpu_quota, quota) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
    }

    fn take_memory(&mut self, limit: Option<Bytes>) {
        self.memory = tighter(self.memory, limit);
    }
}

fn tighter(one: Option<Bytes>, other: Option<Bytes>) -> Option<Bytes> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

/// Calls `read` on the folder of `group` and of each group above it that is visible in the mounts.
fn walk<'a>(
    mounts: impl Iterator<Item = &'a Mount>,
    group: &str,
    hierarchy: &str,
    warnings: &mut Vec<String>,
    mut read: impl FnMut(&str, &mut Vec<String>),
) {
    let (mut is_mounted, mut is_whole) = (false, false);
    for mount in mounts {
        is_mounted = true;
        let below = match place(&mount.group, group) {
            GroupLocation::Below(path) => {
                is_whole = true;
                path
            }
            GroupLocation::SomewhereBelow => String::new(),
            GroupLocation::Outside => continue,
        };
        let mut folder = format!("{}{below}", mount.point.trim_end_matches('/'));
        while folder.len() > mount.point.len() {
            read(&folder, warnings);
            folder.truncate(folder.rfind('/').unwrap_or(0));
        }
        read(&mount.point, warnings);
    }
    // A version 1 hierarchy is often not mounted. An unmounted hierarchy sets no limit.
    if is_mounted && !is_whole {
        warnings.push(format!(
            "cannot read all limits of control group {group} ({hierarchy}): the mounted hierarchy does not \
             show this group"
        ));
    }
}

/// Location of a process's group relative to a mounted one.
enum GroupLocation {
    /// Below the mounted group at this path, which is empty or starts with `/`.
    Below(String),
    /// Below the mounted group, at an unknown path.
    SomewhereBelow,
    /// Outside of the mounted group.
    Outside,
}

fn place(mounted: &str, group: &str) -> GroupLocation {
    let parts = |path| -> Vec<&str> {
        let normal = |part| match part {
            Component::Normal(name) => name.to_str(),
            Component::ParentDir => Some(".."),
            _ => None,
        };
        Path::new(path).components().filter_map(normal).collect()
    };
    let (mounted, group) = (parts(mounted), parts(group));
    match group.strip_prefix(mounted.as_slice()) {
        Some(rest) if rest.contains(&"..") => GroupLocation::Outside,
        Some(rest) => GroupLocation::Below(rest.iter().map(|part| format!("/{part}")).collect()),
        // The mounted group is above the namespace's own group, and the namespace hides the names in between.
        None if mounted.iter().all(|part| *part == "..") && !group.contains(&"..") => {
            GroupLocation::SomewhereBelow
        }
        None => GroupLocation::Outside,
    }
}

/// Parses the control group mounts in `/proc/self/mountinfo` (proc(5)).
fn mounts(mountinfo: &str) -> Vec<Mount> {
    let mount = |line: &str| {
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ').skip(3);
        let (group, point) = (unescape(left.next()?), unescape(left.next()?));
        let mut right = right.split(' ');
        let controllers = match right.next()? {
            "cgroup2" => None,
            "cgroup" => Some(right.nth(1).unwrap_or("").split(',').map(str::to_string).collect()),
            _ => return None,
        };
        Some(Mount { group, point, controllers })
    };
    mountinfo.lines().filter_map(mount).collect()
}

/// Decodes spaces, tabs, line ends and backslashes, which are written as `\040` and similar.
fn unescape(text: &str) -> String {
    let mut plain = text.to_string();
    for (code, letter) in [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")] {
        plain = plain.replace(code, letter);
    }
    plain
}

/// Reads `cpu.max`: `150000 100000`, or `max 100000` for no limit.
fn version_2_quota(root: &Root, folder: &str, warnings: &mut Vec<String>) -> Option<f64> {
    let path = format!("{folder}/cpu.max");
    let text = root.value(&path)?;
    let mut fields = text.split_whitespace();
    let (quota, period) = (fields.next()?, fields.next().unwrap_or("100000"));
    if quota == "max" {
        return None;
    }
    quota_in_cores(quota, period, &path, warnings)
}

/// Reads `cpu.cfs_quota_us`: -1 for no limit.
fn version_1_quota(root: &Root, folder: &str, warnings: &mut Vec<String>) -> Option<f64> {
    let path = format!("{folder}/cpu.cfs_quota_us");
    let quota = root.value(&path)?;
    if quota == "-1" {
        return None;
    }
    let period = root.value(&format!("{folder}/cpu.cfs_period_us")).unwrap_or_else(|| "100000".to_string());
    quota_in_cores(&quota, &period, &path, warnings)
}

fn quota_in_cores(quota: &str, period: &str, path: &str, warnings: &mut Vec<String>) -> Option<f64> {
    match (quota.parse::<u64>(), period.parse::<u64>()) {
        (Ok(quota), Ok(period)) if quota > 0 && period > 0 => Some(quota as f64 / period as f64),
        _ => {
            warnings
                .push(format!("cannot parse the CPU quota in {path}: {quota:?} in a period of {period:?}"));
            None
        }
    }
}

/// Reads `memory.max` (`max` for no limit) or `memory.limit_in_bytes`. In `memory.limit_in_bytes`, a huge number means
/// no limit: the largest multiple of the page size that fits, 2^63 - 4096 on x86.
fn memory(root: &Root, path: &str, warnings: &mut Vec<String>) -> Option<Bytes> {
    const NO_LIMIT: u64 = 1 << 62;
    let text = root.value(path)?;
    match text.parse::<u64>() {
        Ok(limit) => (limit < NO_LIMIT).then_some(Bytes(limit)),
        Err(_) if text == "max" => None,
        Err(_) => {
            warnings.push(format!("cannot parse the memory limit in {path}: {text:?}"));
            None
        }
    }
}
