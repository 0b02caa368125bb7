//! Operating system, memory and affinity, from small files of `/proc` and `/etc`.

use build_info::Bytes;
use build_info::host::{Memory, Os};

use crate::cpulist;
use crate::root::Root;

pub(crate) fn hostname(root: &Root) -> Option<String> {
    root.value("/proc/sys/kernel/hostname")
}

pub(crate) fn os(root: &Root, hypervisor: Option<String>) -> Os {
    // os-release(5): the file in /etc takes precedence over the distribution's own copy.
    let release =
        root.read("/etc/os-release").or_else(|| root.read("/usr/lib/os-release")).unwrap_or_default();
    let field = |name: &str| {
        let line = release.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='))?;
        let value = line.trim().trim_matches(['"', '\'']);
        (!value.is_empty()).then(|| value.to_string())
    };
    Os {
        family: root.os().to_string(),
        distribution: field("ID"),
        version: field("VERSION_ID"),
        kernel: root.value("/proc/sys/kernel/osrelease"),
        hypervisor,
    }
}

pub(crate) fn memory(root: &Root, warnings: &mut Vec<String>) -> Memory {
    let meminfo = root.read("/proc/meminfo").unwrap_or_default();
    let Some(total) = kib_field(&meminfo, "MemTotal:") else {
        warnings.push("cannot determine the memory size: /proc/meminfo has no MemTotal".to_string());
        return Memory::default();
    };
    // Kernels before 3.14 and the /proc of some containers lack MemAvailable.
    let available = kib_field(&meminfo, "MemAvailable:").or_else(|| kib_field(&meminfo, "MemFree:"));
    Memory { total, available: available.unwrap_or_default() }
}

/// Returns the value of the line that contains `name`, as in `MemTotal:  24684084 kB`.
pub(crate) fn kib_field(text: &str, name: &str) -> Option<Bytes> {
    let (_, rest) = text.lines().find_map(|line| line.split_once(name))?;
    let kib: u64 = rest.split_whitespace().next()?.parse().ok()?;
    Some(Bytes(kib.checked_mul(1024)?))
}

/// Returns the CPUs of the affinity mask of `process`, a process ID or `self`, which may include offline CPUs; `None`
/// if the mask cannot be read.
pub(crate) fn affinity(root: &Root, process: &str, warnings: &mut Vec<String>) -> Option<Vec<u32>> {
    let path = format!("/proc/{process}/status");
    let status = root.read(&path).unwrap_or_default();
    if let Some(list) = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")) {
        match cpulist::parse(list) {
            Ok(cpus) if !cpus.is_empty() => return Some(cpus),
            Ok(_) => warnings.push(format!("the affinity mask in {path} is empty")),
            Err(why) => warnings.push(format!("cannot read the affinity mask in {path}: {why}")),
        }
    } else if root.is_live() && process == "self" {
        // Without /proc, the standard library reports how many CPUs this process may use, but not which ones.
        let count = std::thread::available_parallelism().ok()?;
        return Some((0..u32::try_from(count.get()).ok()?).collect());
    } else {
        warnings.push(format!("cannot read the affinity mask: {path} has no Cpus_allowed_list"));
    }
    None
}
