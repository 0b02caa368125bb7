//! Readings of the machine: clocks, huge pages, GPUs, the age of a process.

use std::fs;
use std::path::Path;

use host::process::{ProcFolder, TICKS_PER_SECOND};

use super::watch::Window;
use crate::observation::{ClockFacts, GpuFacts, team};

const CPUS: &str = "sys/devices/system/cpu";

fn value(path: &Path) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_string())
}

fn number(path: &Path) -> Option<f64> {
    value(path)?.parse().ok()
}

/// Returns the clocks of the CPUs on which the team of threads ran; `None` if the system does not report them.
pub fn clocks(root: &Path, window: &Window) -> Option<ClockFacts> {
    let (mut now, mut most, mut count) = (0.0, 0.0, 0u32);
    let mut governor = None;
    for thread in team(&window.threads) {
        let folder = root.join(CPUS).join(format!("cpu{}/cpufreq", thread.cpu));
        let (Some(current), Some(highest)) =
            (number(&folder.join("scaling_cur_freq")), number(&folder.join("cpuinfo_max_freq")))
        else {
            continue;
        };
        (now, most, count) = (now + current, most + highest, count + 1);
        governor = governor.or_else(|| value(&folder.join("scaling_governor")));
    }
    let mean_mhz = |sum: f64| sum / f64::from(count) / 1e3;
    (count > 0).then(|| ClockFacts {
        governor,
        mhz: mean_mhz(now),
        most_mhz: mean_mhz(most),
        heat_events: window.heat_events,
    })
}

/// Returns the number of times that heat has throttled the first package.
pub fn heat_events(root: &Path) -> u64 {
    let path = root.join(CPUS).join("cpu0/thermal_throttle/package_throttle_count");
    value(&path).and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// True if the kernel gives transparent huge pages to no process.
pub fn huge_pages_off(root: &Path) -> bool {
    value(&root.join("sys/kernel/mm/transparent_hugepage/enabled"))
        .is_some_and(|text| text.contains("[never]"))
}

/// Returns the GPUs that drivers show, and whether the process has opened one.
pub fn gpus(root: &Path, folder: &ProcFolder) -> GpuFacts {
    let names = |path: &str| -> Vec<String> {
        let entries = fs::read_dir(root.join(path)).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    };
    let is_numbered = |name: &str, prefix: &str| {
        name.strip_prefix(prefix)
            .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let nvidia = names("dev").iter().filter(|name| is_numbered(name, "nvidia")).count();
    let others = names("dev/dri").iter().filter(|name| is_numbered(name, "renderD")).count();
    let devices = if nvidia > 0 { nvidia } else { others };
    let is_gpu = |path: &Path| {
        let text = path.to_string_lossy();
        let file = text.strip_prefix("/dev/").unwrap_or_default();
        is_numbered(file, "nvidia") || file == "kfd" || file.starts_with("dri/renderD")
    };
    let is_open = folder.open_files().iter().any(|path| is_gpu(path));
    GpuFacts { devices: u32::try_from(devices).unwrap_or(u32::MAX), is_open }
}

/// Returns the age of the process in seconds.
pub fn uptime(root: &Path, folder: &ProcFolder) -> Option<f64> {
    let machine: f64 = value(&root.join("proc/uptime"))?.split(' ').next()?.parse().ok()?;
    let age = machine - folder.started()? as f64 / TICKS_PER_SECOND;
    (age >= 0.0).then_some(age)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::ThreadFacts;

    #[test]
    fn the_machine_is_read_from_small_files() {
        let folder = base::scratch("machine").unwrap();
        let root = folder.path();
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let thread = |cpu, busy| ThreadFacts { cpu, busy, ..ThreadFacts::default() };
        let window =
            Window { threads: vec![thread(0, 0.9), thread(1, 0.9), thread(2, 0.01)], ..Window::default() };
        assert_eq!(clocks(root, &window), None);
        for (cpu, khz) in [(0, 800_000), (1, 1_200_000), (2, 4_000_000)] {
            write(&format!("{CPUS}/cpu{cpu}/cpufreq/scaling_cur_freq"), &format!("{khz}\n"));
            write(&format!("{CPUS}/cpu{cpu}/cpufreq/cpuinfo_max_freq"), "4000000\n");
            write(&format!("{CPUS}/cpu{cpu}/cpufreq/scaling_governor"), "powersave\n");
        }
        let clocks = clocks(root, &window).unwrap();
        assert_eq!(
            (clocks.mhz, clocks.most_mhz, clocks.governor.as_deref()),
            (1000.0, 4000.0, Some("powersave"))
        );

        assert!(!huge_pages_off(root));
        write("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
        assert!(huge_pages_off(root));

        let process = ProcFolder::below(root, "7");
        assert_eq!(gpus(root, &process), GpuFacts::default());
        for device in ["nvidia0", "nvidia1", "nvidiactl", "dri/renderD128"] {
            write(&format!("dev/{device}"), "");
        }
        fs::create_dir_all(root.join("proc/7/fd")).unwrap();
        std::os::unix::fs::symlink("/dev/nvidia1", root.join("proc/7/fd/3")).unwrap();
        assert_eq!(gpus(root, &process), GpuFacts { devices: 2, is_open: true });

        write("proc/uptime", "100.5 7\n");
        write("proc/7/stat", &format!("7 (a b) S {} 5000 0", ["1"; 18].join(" ")));
        assert_eq!(uptime(root, &process), Some(50.5));
    }
}
