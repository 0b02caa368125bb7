//! Memory, CPU time, threads and throttling of processes. No other crate reads these figures.
//!
//! [`sysinfo`] reads resident memory, CPU time, the number of threads and the load average. The other modules read
//! values that sysinfo does not provide:
//!
//! - [`ProcFolder`] reads proc(5): peak resident memory, separate user and system time, the CPU time of children,
//!   page faults, context switches, [threads](ProcFolder::thread_readings), [mapped files](ProcFolder::memory_map) and
//!   [sockets](ProcFolder::listeners).
//! - [`own_cpu_time`], [`thread_time`] and [`ThreadClock`] read clocks of the kernel, which count nanoseconds.
//!   `/proc` counts hundredths of a second.
//! - [`Throttling`] reads control groups.

mod clock;
mod folder;
mod memory;
mod sockets;
mod tasks;
mod throttling;

use std::collections::BTreeMap;

use sysinfo::{Pid, Process, ProcessRefreshKind, ProcessStatus, ProcessesToUpdate, System};

pub use clock::{ThreadClock, own_cpu_time, thread_time};
pub use folder::{Counters, ProcFolder, TICKS_PER_SECOND};
pub use memory::{MappedFile, MemoryMap, ProcessMemory};
pub use sockets::Listener;
pub use tasks::ThreadReading;
pub use throttling::Throttling;

/// Returns the resident memory of process `pid` in bytes; `None` if the process has ended.
pub fn resident(pid: u32) -> Option<u64> {
    ask(pid, ProcessRefreshKind::nothing().without_tasks().with_memory(), |process| {
        // A zombie has no memory left.
        let has_ended = matches!(process.status(), ProcessStatus::Zombie | ProcessStatus::Dead);
        (!has_ended).then(|| process.memory())
    })
}

/// Returns the CPU seconds, user and system, that process `pid` has used, without its children; `None` if the process
/// does not exist. The kernel counts hundredths of a second.
pub fn cpu_seconds(pid: u32) -> Option<f64> {
    ask(pid, ProcessRefreshKind::nothing().without_tasks().with_cpu(), |process| Some(seconds(process)))
}

/// Returns the number of threads of process `pid`; `None` if the process does not exist.
pub fn threads(pid: u32) -> Option<u64> {
    // sysinfo does not count the main thread.
    ask(pid, ProcessRefreshKind::nothing().with_tasks(), |process| {
        Some(1 + process.tasks().map_or(0, |tasks| tasks.len() as u64))
    })
}

/// Returns the name and the CPU seconds, user and system, of every process that this user can see.
pub fn all() -> BTreeMap<u32, (String, f64)> {
    let Ok(mut system) = System::new() else { return BTreeMap::new() };
    let what = ProcessRefreshKind::nothing().without_tasks().with_cpu();
    system.refresh_processes_specifics(ProcessesToUpdate::All, false, what);
    let row = |(pid, process): (&Pid, &Process)| {
        (pid.as_u32(), (process.name().to_string_lossy().into_owned(), seconds(process)))
    };
    system.processes().iter().map(row).collect()
}

/// Returns the load average of the machine over the last minute; `None` if the system does not report it.
pub fn load_average() -> Option<f64> {
    System::load_average().ok().map(|load| load.one)
}

/// Reads `what` of process `pid`. Each call reads the values again and never returns values of a process that has
/// ended.
fn ask<T>(pid: u32, what: ProcessRefreshKind, pick: impl FnOnce(&Process) -> Option<T>) -> Option<T> {
    let pid = Pid::from_u32(pid);
    let mut system = System::new().ok()?;
    system.refresh_processes_specifics(ProcessesToUpdate::Some(&[pid]), false, what);
    pick(system.process(pid)?)
}

fn seconds(process: &Process) -> f64 {
    process.accumulated_cpu_time() as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_process_with_a_strange_name_is_read() {
        let script = "printf 'a) (b' > /proc/$$/comm; echo; read line";
        let mut child = Command::new("sh")
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // The process has its final name once it has written a line.
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        let (seen, alone) = (all(), cpu_seconds(child.id()));
        child.stdin.take().unwrap().write_all(b"end\n").unwrap();
        assert!(child.wait().unwrap().success());
        let (name, seconds) = &seen[&child.id()];
        assert_eq!(name, "a) (b");
        // The process waits for a line, so its CPU time does not change.
        assert_eq!(alone, Some(*seconds));
        assert!(seen.contains_key(&std::process::id()));
    }
}
